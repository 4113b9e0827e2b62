"""Predictions as probabilities: the one place that turns what was sent into points of the simplex."""

from __future__ import annotations

import torch
from torch import Tensor

from fedleak.types import Predictions

__all__ = ["onto_simplex", "raw_probabilities"]


def onto_simplex(values: Tensor) -> Tensor:
    """Rows that sum to one and hold nothing negative.

    Noise leaves neither: what is negative becomes 0, then every row is divided by its sum. A row with nothing positive
    says nothing, and becomes uniform. Rows that are probabilities already keep their values.

    >>> onto_simplex(torch.tensor([[0.6, -0.2, 0.6], [-1.0, -1.0, 0.0]]))
    tensor([[0.5000, 0.0000, 0.5000],
            [0.3333, 0.3333, 0.3333]])
    """
    kept = values.clamp_min(0.0)
    total = kept.sum(dim=-1, keepdim=True)
    usable = total > 0
    return torch.where(usable, kept / torch.where(usable, total, 1.0), 1.0 / values.shape[-1])


def raw_probabilities(predictions: Predictions) -> Tensor:
    """Probabilities as they were sent, noise and all; of logits, their softmax.

    Averages come before `onto_simplex`: noise cancels in a mean of raw numbers, and no longer does once it is cut off.
    """
    if predictions.scale == "logits":
        return torch.softmax(predictions.values, dim=-1)
    return predictions.values
