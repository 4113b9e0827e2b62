"""Recovered images against the private examples behind a message: one number per private example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedleak.errors import ShapeError
from fedleak.metrics.judgement import Judgement, Scores, asked_of, examples_behind
from fedleak.metrics.labels import wrong_labels
from fedleak.metrics.match import match
from fedleak.metrics.nulls import null_guesses
from fedleak.metrics.perceptual import lpips
from fedleak.metrics.pixel import mse, psnr, usable
from fedleak.metrics.registry import NotAvailable
from fedleak.metrics.structure import ssim
from fedleak.types import Examples, RecoveredImages, Truth

__all__ = ["judge_images"]


def judge_images(
    found: RecoveredImages,
    truth: Truth,
    metrics: Sequence[str],
    threshold: float,
    data_root: Path | None,
    rng: torch.Generator,
) -> Judgement:
    """Match the reconstructions of one victim with its private examples and score them, beside the null baselines.

    `threshold` is the PSNR in dB above which `recovered` is 1. `data_root` is where LPIPS finds its weights. `rng`
    draws the null baselines only.
    """
    asked = asked_of("images", metrics)
    original = examples_behind(truth, found.round, found.sender)
    inputs = found.inputs.detach().to(original.inputs.device)
    if len(inputs) == 0:
        inputs = original.inputs[:0]
    if found.labels is not None and len(found.labels) != len(inputs):
        raise ShapeError(
            f"{found.sender}: {len(found.labels)} labels for {len(inputs)} images; an attack gives one per image"
        )

    def case(guessed: Tensor, labels: Tensor | None) -> _Case:
        matching = match(guessed, original.inputs)
        arranged = matching.arrange(guessed)
        return _Case(guessed, arranged, labels, original, truth.private, matching.partner, threshold, data_root)

    real = case(inputs, found.labels)
    scores, unavailable = _score(asked, real)
    comparable = [name for name in asked if name not in unavailable]
    baselines = {
        name: _score(comparable, case(guess.inputs, guess.labels))[0]
        for name, guess in null_guesses(original.inputs, truth.test, rng).items()
    }
    return Judgement(
        scores=scores,
        baselines=baselines,
        reconstruction=torch.nan_to_num(real.arranged, nan=0.5, posinf=1.0, neginf=0.0),
        original=original.inputs,
        found=tuple(usable(real.arranged).tolist()),
        partner=tuple(real.partner.tolist()),
        unavailable=unavailable,
    )


@dataclass(frozen=True, eq=False)
class _Case:
    """All that a metric may read: reconstructions arranged like the originals, labels as the attack gave them."""

    found: Tensor
    arranged: Tensor
    labels: Tensor | None
    original: Examples
    private: Examples
    partner: Tensor
    threshold: float
    data_root: Path | None


def _recovered(case: _Case) -> Tensor:
    # A threshold below 0 dB must not count what was never found.
    return ((psnr(case.arranged, case.original.inputs) > case.threshold) & usable(case.arranged)).double()


def _label_errors(case: _Case) -> Tensor | NotAvailable:
    if case.labels is None:
        return NotAvailable("the attack names no labels")
    return wrong_labels(case.labels, case.original.labels, case.partner)


_ARITHMETIC: dict[str, Callable[[_Case], Tensor | NotAvailable]] = {
    "mse": lambda case: mse(case.arranged, case.original.inputs),
    "psnr": lambda case: psnr(case.arranged, case.original.inputs),
    "ssim": lambda case: ssim(case.arranged, case.original.inputs),
    "lpips": lambda case: lpips(case.arranged, case.original.inputs, case.data_root),
    "recovered": _recovered,
    "label_errors": _label_errors,
}


def _score(metrics: Sequence[str], case: _Case) -> tuple[Scores, dict[str, str]]:
    scores: Scores = {}
    unavailable: dict[str, str] = {}
    for name in metrics:
        values = _ARITHMETIC[name](case)
        if isinstance(values, NotAvailable):
            unavailable[name] = values.reason
        else:
            scores[name] = [float(value) for value in values.tolist()]
    return scores, unavailable
