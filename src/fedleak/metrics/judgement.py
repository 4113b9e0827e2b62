"""What every kind of finding is judged to: scores, baselines, and pictures to look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedleak.errors import DataError
from fedleak.metrics.registry import METRICS, Kind, known_metrics
from fedleak.notebook import judgement_html
from fedleak.types import Examples, Truth

__all__ = ["Judgement", "Scores", "asked_of", "examples_behind"]

Scores = dict[str, list[float]]


@dataclass(frozen=True, eq=False)
class Judgement:
    """What an attack on one victim amounts to.

    Every list has one finite number per example: per private image behind the message, in the order of
    `truth.behind(round, sender)`, for recovered images and label counts; per class, in the order of the labels, for
    pictures of classes; per test example for a stolen model.

    `scores` is metric to numbers, `baselines` null baseline to the same. `unavailable` says why a metric that was asked
    for is missing. `found[i]` is False where no finite reconstruction was left for original i, so that its scores are
    those of nothing (`Metric.nothing`). `original` and `reconstruction` are pixels in the same order, the latter
    unclipped but finite: mid-grey where nothing was found; both are empty where nothing can be shown. `partner` is the
    matching behind it. `more` are further pictures in the same order, by name (the prior). `facts` are plain values
    that belong beside the scores.
    """

    scores: Scores
    baselines: dict[str, Scores]
    reconstruction: Tensor = field(default_factory=lambda: torch.zeros(0))
    original: Tensor = field(default_factory=lambda: torch.zeros(0))
    found: tuple[bool, ...] = ()
    partner: tuple[int, ...] = ()
    unavailable: dict[str, str] = field(default_factory=dict)
    more: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        return judgement_html(self)


def asked_of(kind: Kind, metrics: Iterable[str]) -> tuple[str, ...]:
    """Those of the metrics that judge this kind of finding; an unknown name is an error."""
    return tuple(name for name in known_metrics(metrics) if kind in METRICS[name].judges)


def examples_behind(truth: Truth, round_index: int, sender: str) -> Examples:
    """The private examples behind one message, or DataError where it is of another federation."""
    if (round_index, sender) not in truth.used:
        raise DataError(
            f"sender={sender!r}, round={round_index}: the truth holds no examples behind that message; "
            "judge a finding with the truth of the same federation"
        )
    return truth.behind(round_index, sender)
