"""What a server does with what it received: the mean, weighted by how many examples stand behind each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedleak.errors import RefusedError, ShapeError
from fedleak.types import Named

__all__ = ["weighted_mean"]


def weighted_mean(values: Sequence[Named], weights: Sequence[float]) -> dict[str, Tensor]:
    """Sum of weight * value over sum of weights, tensor by tensor.

    Whole-number tensors (BatchNorm's count of batches) are rounded to the nearest whole number.

    >>> weighted_mean([{"w": torch.tensor([1.0])}, {"w": torch.tensor([4.0])}], [2, 1])
    {'w': tensor([2.])}
    """
    if not values or len(values) != len(weights):
        raise RefusedError(f"{len(values)} values and {len(weights)} weights: give one weight for each of at least one")
    total = float(sum(weights))
    if total <= 0 or min(weights) < 0:
        raise RefusedError(f"weights={list(weights)}: must not be negative and must sum to more than zero")
    first = values[0]
    for other in values[1:]:
        if {name: t.shape for name, t in other.items()} != {name: t.shape for name, t in first.items()}:
            raise ShapeError("values to average must have the same names and shapes")
    return {name: _mean([value[name] for value in values], [float(w) / total for w in weights]) for name in first}


def _mean(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    exact = tensors[0].dtype.is_floating_point
    out = torch.zeros_like(tensors[0], dtype=None if exact else torch.float64)
    for tensor, share in zip(tensors, shares, strict=True):
        out = out.add(tensor, alpha=share) if exact else out.add(tensor.to(torch.float64), alpha=share)
    return out if exact else out.round().to(tensors[0].dtype)
