"""Arms: one defense in one federation, with what the strongest attack got, what the model is worth, what is proved."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedleak.audit.rows import Row
from fedleak.metrics.intervals import Interval
from fedleak.report.kinds import KINDS, Kind
from fedleak.report.levels import strongest
from fedleak.report.tables import Summary, agrees, is_defended, mean_of, ordered, utility_rows
from fedleak.report.words import defense_name, is_attackers, with_strengths

__all__ = ["Arm", "arms_of", "is_deployed", "strongest"]

Provenance = Callable[[Row], Mapping[str, Any]]


@dataclass(frozen=True)
class Arm:
    """`cost` is the test accuracy that the defense takes away: the same arm without it, minus this one, paired by
    test image. `number` names the defense in charts and is the same in every federation of a report, as is `title`."""

    where: Mapping[str, Any]
    attacks: tuple[Summary, ...]
    utility: Interval | None
    cost: Interval | None
    guarantee: str
    learned: tuple[float, ...]
    """Test accuracy as the federation went on, the first before round 1."""
    rounds: int
    members: int
    """How many clients the federation has; 0 where that is not recorded."""
    number: int
    title: str
    deployed: bool

    @property
    def defended(self) -> bool:
        return is_defended(self.where)

    @property
    def defense(self) -> str:
        return str(self.where.get("defense") or "none")

    @property
    def strongest(self) -> Summary | None:
        """Of all kinds of findings the worst."""
        return strongest(self.attacks)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of findings that were judged on this arm."""
        return tuple(kind for kind in KINDS if self.strongest_of(kind) is not None)

    def strongest_of(self, kind: Kind) -> Summary | None:
        return strongest(found for found in self.attacks if found.kind == kind)

    @property
    def hardly_learned(self) -> bool:
        """A model that has learned nothing has no accuracy to lose: what a defense costs cannot be read from it."""
        return len(self.learned) > 1 and self.learned[-1] <= self.learned[0] + 0.01

    @property
    def panel(self) -> str:
        """The federation this arm belongs to, as one word that arms of the same federation share."""
        return _key(self.where, without=("defense",))


def arms_of(
    summaries: Sequence[Summary],
    rows: Iterable[Row],
    provenance: Provenance,
    deployed: str | None = None,
) -> list[Arm]:
    """The arms behind the summaries, in their order."""
    accuracies = utility_rows(ordered(rows))
    groups: dict[str, list[Summary]] = {}
    for found in summaries:
        groups.setdefault(_key(found.where), []).append(found)
    # "gaussian(sigma=0.3)" says its strength, an arm with a name of its own does not: then it needs what was swept.
    strengths: dict[str, set[str]] = {}
    for found in summaries:
        strengths.setdefault(defense_name(found.where), set()).add(with_strengths(found.where))

    def title(where: Mapping[str, Any]) -> str:
        name = defense_name(where)
        return with_strengths(where) if len(strengths[name]) > 1 else name

    titles = {title(found.where): is_defended(found.where) for found in summaries}
    names = sorted(titles, key=lambda name: titles[name])
    return [
        _arm(tuple(group), accuracies, provenance, title(group[0].where), names, deployed) for group in groups.values()
    ]


def is_deployed(where: Mapping[str, Any], deployed: str | None) -> bool:
    """Whether this is the arm that `[deployment]` names: in every protocol that was tried, if there are several."""
    return deployed is not None and str(where.get("defense") or "none") == deployed


def _arm(
    attacks: tuple[Summary, ...],
    accuracies: Sequence[Row],
    provenance: Provenance,
    title: str,
    names: Sequence[str],
    deployed: str | None,
) -> Arm:
    where = {key: value for key, value in attacks[0].where.items() if not is_attackers(key)}
    mine = [row for row in accuracies if agrees(row.where, where)]
    known = [provenance(row) for row in [*mine, *(row for found in attacks for row in found.rows[:1])]]
    by_round = [found["utility_by_round"] for found in known if found.get("utility_by_round")]
    return Arm(
        where=where,
        attacks=attacks,
        utility=mean_of(mine, "utility"),
        cost=_cost(where, mine, accuracies) if is_defended(where) else None,
        guarantee=_statement(max(known, key=_weakness, default={})),
        learned=tuple(float(value) for value in by_round[0]) if by_round else (),
        rounds=max((int(found["rounds"]) for found in known if "rounds" in found), default=0),
        members=max((_members(found) for found in known), default=0),
        number=1 + names.index(title),
        title=title,
        deployed=is_deployed(where, deployed),
    )


def _cost(where: Mapping[str, Any], mine: Sequence[Row], accuracies: Sequence[Row]) -> Interval | None:
    """Paired by seed and test image: the same images judged both models, so their difficulty cancels."""
    free = {
        row.where.get("seed"): row.scores["utility"]
        for row in accuracies
        if not is_defended(row.where)
        and agrees(row.where, where, ignoring=[key for key in (*row.where, *where) if key.startswith("defense")])
    }
    paired = [row for row in mine if len(free.get(row.where.get("seed"), ())) == len(row.scores["utility"])]
    lost = [
        [before - after for before, after in zip(free[row.where.get("seed")], row.scores["utility"], strict=True)]
        for row in paired
    ]
    return mean_of(paired, "utility", lost)


def _members(known: Mapping[str, Any]) -> int:
    split = known.get("split")
    parameters = split.get("parameters") if isinstance(split, Mapping) else None
    count = parameters.get("clients") if isinstance(parameters, Mapping) else None
    return count if isinstance(count, int) else 0


def _weakness(known: Mapping[str, Any]) -> float:
    """Seeds can differ in what is proven (a message is longer where more images are public): the least of it holds."""
    found = known.get("guarantee")
    if not found:
        return -math.inf
    epsilon = found.get("epsilon") if isinstance(found, Mapping) else None
    return math.inf if epsilon is None else float(epsilon)


def _statement(known: Mapping[str, Any]) -> str:
    found = known.get("guarantee")
    if isinstance(found, str):
        return found
    if not isinstance(found, Mapping):
        return ""
    if found.get("statement"):
        return str(found["statement"])
    if found.get("epsilon") is not None:
        return f"({found['epsilon']:.3g}, {found.get('delta') or 0:.1g})-differential privacy"
    return str(found.get("kind") or "")


def _key(where: Mapping[str, Any], without: Sequence[str] = ()) -> str:
    kept = {key: value for key, value in where.items() if not is_attackers(key) and not key.startswith(tuple(without))}
    return json.dumps(kept, sort_keys=True, default=str)
