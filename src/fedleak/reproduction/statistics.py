"""The statistics the papers print, each from one row to numbers that are averaged.

An entry gives None for an example that the statistic leaves out. Percent where the paper prints percent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedleak.audit.rows import Row
from fedleak.reproduction.evidence import Evidence

__all__ = ["STATISTICS", "Statistic"]

Numbers = Sequence[float | None]


@dataclass(frozen=True)
class Statistic:
    """How a number comes about. `one` is what a success is printed as where every value is a success or 0: 100 for a
    percentage, 1 for a share. `of_federation`: it stands in the federation's own row, whatever the attack.
    `reads` names the metrics that a specification must ask for."""

    of: Callable[[Row, Evidence], Numbers]
    reads: tuple[str, ...] = ()
    one: float | None = None
    of_federation: bool = False


def _plain(metric: str, factor: float = 1.0, one: float | None = None) -> Statistic:
    return Statistic(lambda row, _: [factor * value for value in row.scores.get(metric, [])], (metric,), one)


def _when_recovered(metric: str, otherwise: float | None) -> Statistic:
    """The recovered examples as they are; the others count as `otherwise`, or not at all (None)."""
    return Statistic(
        lambda row, _: [
            value if recovered else otherwise
            for value, recovered in zip(row.scores.get(metric, []), row.scores.get("recovered", []), strict=False)
        ],
        (metric, "recovered"),
    )


def _loss_at_the_start(row: Row, evidence: Evidence) -> Numbers:
    losses = evidence.losses(row)
    return [losses[0][1]] if losses else []


def _first_recovered(row: Row, evidence: Evidence) -> Numbers:
    """The first iteration, among those of which a picture was kept, at which an image passes the threshold."""
    taken = evidence.psnrs(row)
    if not taken or row.threshold is None:
        return []
    passed = np.stack([values for _, values in taken]) > row.threshold
    return [taken[int(of.argmax())][0] if of.any() else None for of in passed.T]


STATISTICS: dict[str, dict[str, Statistic]] = {
    "dlm": {
        "acc": _plain("recovered", 100.0, one=100.0),
        # What the columns of the tables fit: every failed example counts as 0.
        "psnr": _when_recovered("psnr", otherwise=0.0),
        "psnr_success": _when_recovered("psnr", otherwise=None),
        "psnr_all": _plain("psnr"),
        "ssim": _plain("ssim"),
        # A failed picture has no meaningful distance to the original.
        "lpips": _when_recovered("lpips", otherwise=None),
        "label_errors": _plain("label_errors"),
        "loss_start": Statistic(_loss_at_the_start),
        "loss_final": Statistic(lambda row, evidence: [evidence.loss(row)]),
        "first_recovered": Statistic(_first_recovered, ("psnr",)),
        "utility": Statistic(lambda row, _: row.scores.get("utility", []), one=1.0, of_federation=True),
    },
    "pli": {
        "attack_accuracy": _plain("attack_accuracy", 100.0, one=100.0),
    },
}
"""By paper: the same word means different averages in different papers."""
