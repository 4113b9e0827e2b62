"""From what an attack found and what was true to one number per example: the step the runner calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from fedleak.metrics.judge_classes import judge_classes
from fedleak.metrics.judge_counts import judge_counts
from fedleak.metrics.judge_images import judge_images
from fedleak.metrics.judge_models import judge_model
from fedleak.metrics.judgement import Judgement
from fedleak.metrics.registry import NotAvailable
from fedleak.types import RecoveredClasses, RecoveredCounts, RecoveredImages, StolenModel, Truth

__all__ = ["Judged", "judge", "utility"]

Judged = RecoveredImages | RecoveredCounts | RecoveredClasses | StolenModel


def judge(
    found: Judged,
    truth: Truth,
    metrics: Sequence[str],
    threshold: float,
    data_root: Path | None,
    rng: torch.Generator,
) -> Judgement:
    """Hold what was found of one victim against the truth, beside its null baselines.

    Of `metrics` those are computed that mean something for this kind of finding (`Metric.judges`). `threshold` is the
    PSNR in dB above which `recovered` is 1. `data_root` is where LPIPS finds its weights. `rng` draws the null
    baselines only.
    """
    match found:
        case RecoveredImages():
            return judge_images(found, truth, metrics, threshold, data_root, rng)
        case RecoveredClasses():
            return judge_classes(found, truth, metrics, rng)
        case RecoveredCounts():
            return judge_counts(found, truth, metrics, rng)
        case StolenModel():
            return judge_model(found, truth, metrics)


def utility(truth: Truth) -> list[float] | NotAvailable:
    """One number per test example: does the final model classify it right? 0 or 1; where every client has a model of
    its own, the share of them that do."""
    if truth.correct.numel() == 0:
        return NotAvailable("the federation was not tested on held-out examples")
    return [float(value) for value in truth.correct.tolist()]
