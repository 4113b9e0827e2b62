"""Two defenses at the same privacy loss, seed by seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from fedleak.audit.rows import UTILITY, Row
from fedleak.metrics.intervals import Interval, interval
from fedleak.report.frontier import family_of
from fedleak.report.tables import is_defended, utility_rows
from fedleak.report.words import with_strengths

__all__ = ["Curve", "cost_at", "curves_by_seed", "matched_difference"]

Curve = Sequence[tuple[float, float]]
"""(utility loss, privacy loss) of every strength of one family of defenses, the undefended arm included."""

BOOTSTRAP_SEED = 20260
"""Fixed: the same rows give the same intervals."""


def cost_at(curve: Curve, privacy_loss: float) -> float | None:
    """The utility loss at which a curve reaches a privacy loss; None where it does not.

    Strengths are put in the order of their privacy loss, and between two of them the cost is interpolated linearly.
    """
    ordered = sorted(curve, key=lambda place: (-place[1], place[0]))
    reached = [cost for cost, privacy in ordered if privacy == privacy_loss]
    for (before, high), (after, low) in pairwise(ordered):
        if low < privacy_loss < high:
            share = (high - privacy_loss) / (high - low)
            reached.append(before + share * (after - before))
    return min(reached, default=None)


def curves_by_seed(rows: Iterable[Row], attack: str, metric: str = "attack_accuracy") -> dict[str, dict[Any, Curve]]:
    """Family of defenses to (seed to its curve), from the rows of one federation under many defenses.

    Utility loss is the undefended test accuracy of the same seed minus the defended one; privacy loss the mean of
    `metric` over all victims of `attack`.
    """
    known = list(rows)
    utility: dict[tuple[Any, str], float] = {}
    for row in utility_rows(known):
        utility[row.where.get("seed"), _defense(row)] = _mean(row.scores["utility"])
    attacked: dict[tuple[Any, str], list[float]] = {}
    for row in known:
        if row.where.get("attack") == attack != UTILITY and row.scores.get(metric):
            attacked.setdefault((row.where.get("seed"), _defense(row)), []).extend(row.scores[metric])
    free = {seed: value for (seed, defense), value in utility.items() if not is_defended({"defense": defense})}
    curves: dict[str, dict[Any, list[tuple[float, float]]]] = {}
    for (seed, defense), values in attacked.items():
        if seed not in free or (seed, defense) not in utility:
            continue
        place = (free[seed] - utility[seed, defense], _mean(values))
        curves.setdefault(family_of(defense), {}).setdefault(seed, []).append(place)
    undefended = {
        seed: places
        for name in list(curves)
        if not is_defended({"defense": name})
        for seed, places in curves[name].items()
    }
    return {
        name: {seed: [*undefended.get(seed, ()), *places] for seed, places in by_seed.items()}
        for name, by_seed in curves.items()
        if is_defended({"defense": name})
    }


def matched_difference(costly: Mapping[Any, Curve], cheap: Mapping[Any, Curve], privacy_loss: float) -> Interval | None:
    """Utility loss of the one minus that of the other where both reach `privacy_loss`, over the seeds in which both do:
    the mean with its 95 % interval, paired by seed; None where there is no such seed."""
    found = {
        seed: one - other
        for seed in costly
        if seed in cheap
        and (one := cost_at(costly[seed], privacy_loss)) is not None
        and (other := cost_at(cheap[seed], privacy_loss)) is not None
    }
    if not found:
        return None
    return interval(list(found.values()), [(seed, seed) for seed in found], rng=BOOTSTRAP_SEED)


def _defense(row: Row) -> str:
    return with_strengths(row.where)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
