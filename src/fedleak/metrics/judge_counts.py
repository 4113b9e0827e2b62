"""Label counts against the labels behind a message."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedleak.metrics.judgement import Judgement, asked_of, examples_behind
from fedleak.metrics.labels import wrong_labels
from fedleak.types import RecoveredCounts, Truth

__all__ = ["judge_counts"]


def judge_counts(found: RecoveredCounts, truth: Truth, metrics: Sequence[str], rng: torch.Generator) -> Judgement:
    """One 0/1 per private example: 1 where its label is missing from the counts. The sum is the number of label errors.

    Baselines: the commonest label of other people for every example, and labels drawn evenly from the classes.
    """
    labels = examples_behind(truth, found.round, found.sender).labels
    if not asked_of("counts", metrics):
        return Judgement({}, {})
    named = torch.repeat_interleave(torch.arange(len(found.counts)), found.counts.cpu().long().clamp(min=0))
    count = len(labels)
    evenly = torch.randint(0, max(len(found.counts), 1), (count,), generator=rng)
    others = truth.test.labels if len(truth.test) else torch.zeros(1, dtype=torch.int64)
    guesses = {"evenly": evenly, "commonest": torch.full((count,), int(torch.mode(others).values))}
    return Judgement(
        scores={"label_errors": _errors(named, labels)},
        baselines={name: {"label_errors": _errors(guess, labels)} for name, guess in guesses.items()},
    )


def _errors(named: Tensor, labels: Tensor) -> list[float]:
    return [float(value) for value in wrong_labels(named, labels).tolist()]
