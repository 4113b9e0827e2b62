"""What was not tested: the attacks that did not run, what was refused, what could not be measured, other attackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedleak.audit.rows import UTILITY, Row
from fedleak.report.words import plural, prose

__all__ = ["Gap", "gaps_of"]

NOT_TRIED = ("refused", "failed", "out_of_memory", "timed_out")

OTHER_THREATS = (
    "A malicious server that changes the model or what it sends to provoke leaks. Here the server only listens.",
    "Membership inference: whether a given person's data took part at all, also where no image can be rebuilt.",
    "Properties of a client's data (which labels, which group of people), and what the final model tells its users.",
    "Attackers who know more than was granted here, who join several clients, or who use other data about the victims.",
)


@dataclass(frozen=True)
class Gap:
    """One thing this report cannot speak about; `items` are the details."""

    what: str
    items: tuple[str, ...] = ()


def gaps_of(
    rows: Sequence[Row],
    attacked: Sequence[Row],
    known: Mapping[str, Any],
    lost: Sequence[str],
    rounds: Mapping[str, int] = {},
) -> list[Gap]:
    """`known` are the attacks that fedleak has, by name; `lost` says which artifacts could not be read; `rounds` is
    how many each protocol had."""
    if not rows:
        return []
    ran = {str(row.where.get("attack")) for row in attacked if row.scores}
    missing = [f"{name}{_paper(attack)}" for name, attack in known.items() if name not in ran]
    found = [
        Gap("Attacks that fedleak has and that gave no result in this run.", tuple(missing)),
        Gap("Attacks on these updates were tried and brought nothing that could be judged.", _ended(attacked)),
        Gap("Attacked on terms that do not fit the update: what was found may be too little.", _marked(attacked)),
        Gap("Metrics that were asked for and could not be computed.", _unavailable(rows)),
        Gap("Parts of the run folder could not be read; their pictures or curves are left out.", tuple(lost)),
        Gap(_extent(attacked, rounds)),
        Gap("Other threats, which no attack here speaks about.", OTHER_THREATS),
    ]
    return [gap for gap in found if gap.items or gap.what.startswith("Only ")]


def _paper(attack: Any) -> str:
    paper = getattr(attack, "paper", "")
    return f" ({paper})" if isinstance(paper, str) and paper else ""


def _ended(attacked: Sequence[Row]) -> tuple[str, ...]:
    reasons: dict[tuple[str, str, str], int] = {}
    for row in attacked:
        if row.status in NOT_TRIED:
            key = (
                f"{row.where.get('protocol')}, {row.where.get('defense')}, {row.where.get('attack')}",
                row.status,
                row.reason,
            )
            reasons[key] = reasons.get(key, 0) + 1
    return tuple(
        f"{place}: {plural(count, 'updates')} {status.replace('_', ' ')}{': ' + reason if reason else ''}"
        for (place, status, reason), count in reasons.items()
    )


def _marked(attacked: Sequence[Row]) -> tuple[str, ...]:
    """One reason of every attack stands for all: they differ in numbers only."""
    found: dict[str, list[str]] = {}
    for row in attacked:
        if row.status == "ok" and row.reason:
            place = f"{row.where.get('protocol')}, {row.where.get('defense')}, {row.where.get('attack')}"
            found.setdefault(place, []).append(row.reason)
    return tuple(f"{place}: {plural(len(said), 'updates')}, such as: {said[0]}" for place, said in found.items())


def _unavailable(rows: Sequence[Row]) -> tuple[str, ...]:
    found = {(metric, reason): None for row in rows for metric, reason in sorted(row.unavailable.items())}
    unmeasured = (row for row in rows if row.where.get("attack") == UTILITY and not row.scores)
    found |= {("utility", row.reason or str(row.status)): None for row in unmeasured}
    return tuple(f"{metric}: {reason}" for metric, reason in found)


def _extent(attacked: Sequence[Row], rounds: Mapping[str, int]) -> str:
    """How little of a real deployment was looked at."""
    if not attacked:
        return ""
    seeds = {str(row.where.get("seed")) for row in attacked}
    datasets = list(dict.fromkeys(str(row.where.get("dataset")) for row in attacked))
    models = list(dict.fromkeys(str(row.where.get("model")) for row in attacked if row.where.get("model")))
    parts = [plural(len(seeds), "seeds"), f"the data of {prose(datasets)}"]
    if models:
        parts.append(f"the model {prose(models)}" if len(models) == 1 else f"the models {prose(models)}")
    parts += _rounds(attacked, rounds)
    return f"Only {prose(parts)} were looked at. Other data, models or rounds may leak more."


def _rounds(attacked: Sequence[Row], rounds: Mapping[str, int]) -> list[str]:
    """Which rounds of how many; protocols in which these are the same are named together."""
    looked: dict[str, set[int]] = {}
    for row in attacked:
        if isinstance(row.where.get("round"), int):
            looked.setdefault(str(row.where.get("protocol")), set()).add(row.where["round"])
    alike: dict[str, list[str]] = {}
    for protocol, seen in looked.items():
        of = f" of {rounds[protocol]}" if rounds.get(protocol, 0) > len(seen) else ""
        said = f"{'round' if len(seen) == 1 else 'rounds'} {prose(map(str, sorted(seen)))}{of}"
        alike.setdefault(said, []).append(protocol)
    if len(alike) == 1:
        return list(alike)
    return [f"{said} ({prose(protocols)})" for said, protocols in alike.items()]
