"""What must stand beside pictures of classes and copies of models, or their numbers say too much.

Of pictures: what the prior alone reaches and the gain over it, what a client yields that never held the label, how
often the picture came from the client that holds it, and whether copies of private images are public. Of copies: the
victim, the guess, and the best round as what it is, an upper bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedleak.audit.rows import Row
from fedleak.metrics.divergence import Bound
from fedleak.metrics.intervals import Interval
from fedleak.report.arms import Arm
from fedleak.report.levels import copied_share
from fedleak.report.summaries import Summary
from fedleak.report.tables import mean_of
from fedleak.report.words import plural

__all__ = ["Beside", "Copied", "Facts", "Pictured", "beside_of", "copied", "no_facts", "pictured", "twins_words"]

Facts = Callable[[Row], Mapping[str, Any]]


def no_facts(row: Row) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class Pictured:
    """Pictures of classes. `prior` and `stranger` are metric to mean; `gain` is attack minus prior, paired by class."""

    found: Summary
    prior: Mapping[str, float]
    gain: Mapping[str, Interval]
    stranger: Mapping[str, float]
    owner: float | None
    """How often the picture was taken from a client that holds the class."""
    twins: tuple[int, ...]
    """Private images with a copy in the public set, in every seed that says so."""

    @property
    def twins_said(self) -> str:
        if not self.twins:
            return "not recorded"
        if max(self.twins) == 0:
            return "none"
        low, high = min(self.twins), max(self.twins)
        return f"{low}" if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class Copied:
    """Copies of models. `gap` is the victim's accuracy minus the copy's, paired by test image; `share` how far the copy
    comes from a guess (0) to the victim (1)."""

    found: Summary
    gap: Interval | None
    share: float
    bound: float | None
    """Accuracy at the best round, chosen by the test images themselves: an upper bound on what an attacker can pick."""
    bound_rounds: str
    theorem: str = ""
    """How far the risk on the public images can be from that on private ones; empty where rows do not say."""


@dataclass(frozen=True)
class Beside:
    """The two tables of one federation: (arm, line) each."""

    title: str
    pictures: tuple[tuple[Arm, Pictured], ...]
    copies: tuple[tuple[Arm, Copied], ...]


def beside_of(federations: Sequence[tuple[str, Sequence[Arm]]], facts: Facts) -> list[Beside]:
    """Federations in which classes were pictured or models copied."""
    made = []
    for title, arms in federations:
        judged = [(arm, found) for arm in arms for found in arm.attacks if found.success is not None]
        pictures = tuple((arm, pictured(found, facts)) for arm, found in judged if found.kind == "classes")
        copies = tuple((arm, copied(found, facts)) for arm, found in judged if found.kind == "model")
        if pictures or copies:
            made.append(Beside(title, pictures, copies))
    return made


def pictured(found: Summary, facts: Facts = no_facts) -> Pictured:
    known = [(facts(row), len(row.scores.get("attack_accuracy", ()))) for row in found.rows]
    right = [
        (float(said["chosen_client_right"]), weight) for said, weight in known if _number(said, "chosen_client_right")
    ]
    total = sum(weight for _, weight in right)
    metrics = [name for name in ("attack_accuracy", "ssim") if name in found.scores]
    return Pictured(
        found=found,
        prior={name: mean for name in metrics if (mean := _guess(found.rows, "prior", name)) is not None},
        gain={name: gain for name in metrics if (gain := _difference(found.rows, name, "prior")) is not None},
        stranger={name: mean for name in metrics if (mean := _guess(found.rows, "other_client", name)) is not None},
        owner=sum(share * weight for share, weight in right) / total if total else None,
        twins=tuple(int(said["twins"]) for said, _ in known if _number(said, "twins")),
    )


def copied(found: Summary, facts: Facts = no_facts) -> Copied:
    known = [facts(row) for row in found.rows]
    bounds = [float(said["upper_bound_accuracy"]) for said in known if _number(said, "upper_bound_accuracy")]
    rounds = sorted({int(said["upper_bound_round"]) for said in known if _number(said, "upper_bound_round")})
    lost = [
        [victim - copy for victim, copy in zip(*pair, strict=True)] if len(pair[0]) == len(pair[1]) else []
        for row in found.rows
        for pair in [(row.scores.get("victim_accuracy", ()), row.scores.get("attack_accuracy", ()))]
    ]
    if len(rounds) > 1:
        said = f"rounds {rounds[0]} to {rounds[-1]}"
    else:
        said = f"round {rounds[0]}" if rounds else ""
    return Copied(
        found=found,
        gap=mean_of(found.rows, "attack_accuracy", lost),
        share=copied_share(found),
        bound=sum(bounds) / len(bounds) if bounds else None,
        bound_rounds=said,
        theorem=_theorem(known),
    )


def _theorem(known: Sequence[Mapping[str, Any]]) -> str:
    """Theorem 2 of adamsa.txt, (1 - alpha) (d / 2 + lambda), with the mean alpha and d of the rows."""
    said = [one["theorem_2"] for one in known if isinstance(one.get("theorem_2"), Mapping)]
    said = [one for one in said if _number(one, "alpha") and _number(one, "distance")]
    if not said:
        return ""
    alpha, distance = (sum(one[name] for one in said) / len(said) for name in ("alpha", "distance"))
    known_lambda = all(_number(one, "lambda") for one in said)
    bound = Bound(alpha, distance, sum(one["lambda"] for one in said) / len(said) if known_lambda else None)
    return f"within {bound.known_part:.2f} + {1 - alpha:.2f} λ" if bound.value is None else f"within {bound.value:.2f}"


def twins_words(found: Pictured) -> str:
    """Whether public twins of private images exist, as a sentence; empty where the rows do not say."""
    if not found.twins:
        return ""
    most, name = max(found.twins), found.found.where.get("protocol")
    if most == 0:
        return f"No private image has a public twin in {name}: none of the public images was made from a private one."
    have = "has" if most == 1 else "have"
    up_to = "" if min(found.twins) == most else "Up to "
    return (
        f"{up_to}{plural(most, 'private images')} {have} a public twin in {name} (the same picture as the public sees "
        "it): part of the success may be theirs."
    )


def _number(said: Mapping[str, Any], name: str) -> bool:
    value = said.get(name)
    return isinstance(value, int | float) and not isinstance(value, bool)


def _guess(rows: Sequence[Row], name: str, metric: str) -> float | None:
    values = [value for row in rows for value in row.baselines.get(name, {}).get(metric, ())]
    return sum(values) / len(values) if values else None


def _difference(rows: Sequence[Row], metric: str, name: str) -> Interval | None:
    """Attack minus guess, paired by class: the same class judged both, so its difficulty cancels."""
    lists = []
    for row in rows:
        own, other = row.scores.get(metric, ()), row.baselines.get(name, {}).get(metric, ())
        lists.append([a - b for a, b in zip(own, other, strict=True)] if len(own) == len(other) else [])
    return mean_of(rows, metric, lists)
