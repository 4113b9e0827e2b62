"""Utility against privacy: which settings of a defense are worth having, what they amount to, and which one to take.

A point is one arm: the test accuracy that its defense costs (utility loss, U_0 - U_d) and the share that the strongest
attack on it still gets (privacy loss). Both are better small. adamsa.txt, figure 4, prints utility loss with the other
sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedleak.metrics.intervals import Interval
from fedleak.report.arms import Arm
from fedleak.report.kinds import KINDS, Kind
from fedleak.report.words import points

__all__ = ["Frontier", "Setting", "area", "as_data", "family_of", "frontiers", "pareto", "recommend"]

SMALLEST_RANGE = 0.01
"""Of utility losses: below one point there is no curve to speak of."""
NO_PRICE = "no recommendation: the undefended model hardly learned, so what a defense costs cannot be told"


@dataclass(frozen=True)
class Setting:
    """One arm as a point. `number` is the arm's in the report."""

    name: str
    family: str
    utility_loss: Interval
    privacy_loss: Interval
    number: int = 1
    defended: bool = True

    @property
    def place(self) -> tuple[float, float]:
        return self.utility_loss.mean, self.privacy_loss.mean


@dataclass(frozen=True)
class Frontier:
    """The settings of one federation against one kind of finding.

    `front` are those that no other beats in both; `area` is the mean privacy loss along it, over all utility losses
    from 0 to `limit`; `areas` is the same for each family of defenses alone (with the undefended arm): smaller is
    better, and comparable within one frontier only, because they share `limit`.
    """

    title: str
    kind: Kind
    settings: tuple[Setting, ...]
    front: tuple[Setting, ...]
    limit: float
    area: float
    areas: tuple[tuple[str, float], ...]
    recommended: Setting | None
    advice: str


def pareto(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Those that no other setting beats: none loses less of both, or less of one and as much of the other.

    By utility loss; of equal places all are kept.
    """

    def beaten(one: Setting) -> bool:
        mine = one.place
        return any(
            other.place != mine and other.place[0] <= mine[0] and other.place[1] <= mine[1] for other in settings
        )

    return tuple(sorted((one for one in settings if not beaten(one)), key=lambda one: (*one.place, one.number)))


def area(settings: Sequence[Setting], limit: float) -> float:
    """The mean privacy loss of the best affordable setting over all budgets of utility loss from 0 to `limit`.

    At budget x the best is the smallest privacy loss among the settings that cost at most x: a falling staircase. A
    defense that costs nothing, or makes the model better, is affordable at 0; below the cheapest setting the attacker
    is taken to get everything (1).
    """
    steps = sorted((max(0.0, one.place[0]), one.place[1]) for one in settings)
    total, at, best = 0.0, 0.0, 1.0
    for cost, privacy in steps:
        if cost >= limit and cost > 0:
            break
        total += (cost - at) * best
        at, best = cost, min(best, privacy)
    return (total + (limit - at) * best) / limit


def recommend(settings: Sequence[Setting]) -> tuple[Setting | None, str]:
    """The setting whose defense takes most from the attacker beyond what it takes from the model, point for point.

    None where no defense takes more than it costs. A cheaper one wins a tie.
    """
    free = next((one for one in settings if not one.defended), None)
    defended = [one for one in settings if one.defended]
    if free is None or not defended:
        return None, "no recommendation: it takes an undefended arm and a defended one to compare"

    def worth(one: Setting) -> float:
        return free.place[1] - one.place[1] - max(0.0, one.place[0])

    best = max(defended, key=lambda one: (round(worth(one), 12), -one.place[0], -one.number))
    if worth(best) <= 0:
        return None, "no setting takes more from the attacker than it costs in test accuracy"
    gain, cost = free.place[1] - best.place[1], best.utility_loss
    paid = f"costs {points(cost.mean)} of test accuracy" if cost.mean > 0 else "costs no test accuracy"
    spread = "" if cost.degenerate else f" ({_between(cost)})"
    text = f"{best.name}: takes {points(gain)} from the attacker and {paid}{spread}"
    if best.privacy_loss.high >= free.privacy_loss.low:
        text += "; the intervals of the attacker's share overlap, so more seeds are needed to be sure"
    return best, text


def _between(found: Interval) -> str:
    return f"{points(found.low).partition(' ')[0]} to {points(found.high)}"


def family_of(defense: str) -> str:
    """The defense without its strength.

    >>> family_of("clip(norm=1)+gaussian(sigma=0.01)")
    'clip+gaussian'
    """
    out, depth = "", 0
    for letter in defense:
        depth += (letter == "(") - (letter == ")")
        out += letter if depth == 0 and letter != ")" else ""
    return out


def frontiers(federations: Sequence[tuple[str, Sequence[Arm]]]) -> list[Frontier]:
    """One frontier for every federation and kind of finding with an undefended arm and at least two defended ones."""
    found = []
    for title, arms in federations:
        learned = not any(arm.hardly_learned for arm in arms if not arm.defended)
        for kind in KINDS:
            settings = [one for arm in arms if (one := _setting(arm, kind)) is not None]
            if sum(one.defended for one in settings) >= 2 and not all(one.defended for one in settings):
                found.append(_frontier(title, kind, settings, learned))
    return found


def _setting(arm: Arm, kind: Kind) -> Setting | None:
    attacked = arm.strongest_of(kind)
    if attacked is None or attacked.success is None or arm.utility is None:
        return None
    nothing = Interval(0.0, 0.0, 0.0, arm.utility.n)
    cost = arm.cost if arm.defended else nothing
    if cost is None:
        return None
    return Setting(arm.title, family_of(arm.defense), cost, attacked.success, arm.number, arm.defended)


def _frontier(title: str, kind: Kind, settings: Sequence[Setting], learned: bool) -> Frontier:
    limit = max(SMALLEST_RANGE, *(one.place[0] for one in settings))
    free = [one for one in settings if not one.defended]
    families = dict.fromkeys(one.family for one in settings if one.defended)
    areas = tuple((name, area([*free, *(s for s in settings if s.family == name)], limit)) for name in families)
    chosen, advice = recommend(settings) if learned else (None, NO_PRICE)
    return Frontier(title, kind, tuple(settings), pareto(settings), limit, area(settings, limit), areas, chosen, advice)


def as_data(found: Frontier) -> dict[str, Any]:
    """The same as plain data, for `fedleak report --json`. Losses are shares: of test images, and of the attacker's."""

    def setting(one: Setting) -> dict[str, Any]:
        return {
            "defense": one.name if one.defended else "none",
            "utility_loss": _numbers(one.utility_loss),
            "privacy_loss": _numbers(one.privacy_loss),
            "on_front": one in found.front,
        }

    return {
        "federation": found.title,
        "finding": found.kind,
        "settings": [setting(one) for one in found.settings],
        "area": found.area,
        "area_up_to": found.limit,
        "areas": dict(found.areas),
        "recommended": None if found.recommended is None else setting(found.recommended),
        "advice": found.advice,
    }


def _numbers(found: Interval) -> dict[str, float]:
    return {"mean": found.mean, "low": found.low, "high": found.high}
