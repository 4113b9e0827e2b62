"""The statistics the papers print, each from the per-example scores of one row to numbers that are averaged.

An entry gives None for an example that the statistic leaves out. Percent where the paper prints percent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedleak.audit.rows import Row

__all__ = ["STATISTICS", "Statistic"]

Statistic = Callable[[Row], Sequence[float | None]]


def _plain(metric: str, factor: float = 1.0) -> Statistic:
    return lambda row: [factor * value for value in row.scores.get(metric, [])]


def _successes(metric: str) -> Statistic:
    """Only the recovered examples: a failed picture has no meaningful distance to the original."""
    return lambda row: [
        value if recovered else None
        for value, recovered in zip(row.scores.get(metric, []), row.scores.get("recovered", []), strict=False)
    ]


def _failures_as_zero(metric: str) -> Statistic:
    """What the columns of dlm.txt's tables fit: every failed example counts as 0."""
    return lambda row: [
        value if recovered else 0.0
        for value, recovered in zip(row.scores.get(metric, []), row.scores.get("recovered", []), strict=False)
    ]


STATISTICS: dict[str, dict[str, Statistic]] = {
    "dlm": {
        "acc": _plain("recovered", 100.0),
        "psnr": _failures_as_zero("psnr"),
        "psnr_success": _successes("psnr"),
        "psnr_all": _plain("psnr"),
        "ssim": _plain("ssim"),
        "lpips": _successes("lpips"),
    },
}
"""By paper: the same word means different averages in different papers."""
