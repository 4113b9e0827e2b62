"""How far the dummies' gradient is from what the client sent.

A distance sees a batch of problems: every tensor has the problem as its first dimension. It returns one value per
problem and, in closed form, the derivative of that value with respect to the gradient: cheaper and, near the solution,
more exact than automatic differentiation of the distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

__all__ = ["Distance", "JointDistance", "SquaredL2", "UnitDifference", "per_problem", "squared_norm"]

TINY = 1e-12
"""Below this norm a gradient has no direction; dividing by it would make a number that is not finite."""


class Distance(Protocol):
    """Values (b,) and the derivative of each with respect to its gradient, tensor by tensor."""

    def prepare(self, target: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The targets as this distance wants them, computed once before the search."""
        ...

    def unit(self, target: Sequence[Tensor]) -> Tensor:
        """Per problem, the value that a gradient has which is as far from the target as the target is long."""
        ...

    def __call__(self, gradient: Sequence[Tensor], target: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]: ...


@runtime_checkable
class JointDistance(Protocol):
    """A distance with unknowns of its own, one number each in `start`, which are searched beside the dummies."""

    @property
    def start(self) -> tuple[float, ...]: ...

    def prepare(self, target: Sequence[Tensor]) -> tuple[Tensor, ...]: ...

    def unit(self, target: Sequence[Tensor]) -> Tensor: ...

    def joint(
        self, gradient: Sequence[Tensor], target: Sequence[Tensor], unknown: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        """Values, their derivatives with respect to the gradient, and with respect to the unknowns (b, n)."""
        ...


def squared_norm(tensors: Sequence[Tensor]) -> Tensor:
    """The squared norm over all tensors, one per problem."""
    flat = [t.reshape(len(t), -1) for t in tensors]
    return torch.stack([torch.linalg.vecdot(f, f) for f in flat]).sum(dim=0)


def per_problem(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (like.dim() - 1))


@dataclass(frozen=True)
class SquaredL2:
    """|g - target|^2, DLG's distance (Zhu et al. 2019; dlm.txt eq. 10 with k = 1), times `factor`."""

    factor: float = 1.0

    def prepare(self, target: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(target)

    def unit(self, target: Sequence[Tensor]) -> Tensor:
        return self.factor * squared_norm(target)

    def __call__(self, gradient: Sequence[Tensor], target: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        apart = [g - t for g, t in zip(gradient, target, strict=True)]
        value = self.factor * squared_norm(apart)
        return value, tuple(a.mul_(2 * self.factor) for a in apart)


@dataclass(frozen=True)
class UnitDifference:
    """|g/|g| - target/|target||^2, DLM+'s distance (dlm.txt eq. 8), times `factor`.

    Over all parameters at once it equals 2 (1 - cosine). It is computed as a difference of unit vectors, because in
    float32 `1 - cosine` cannot fall below about 1e-7. With `per_layer` every tensor is normalised on its own, and the
    value is the mean over tensors, so that both scopes range over [0, 4].
    """

    factor: float = 1.0
    per_layer: bool = False

    def prepare(self, target: Sequence[Tensor]) -> tuple[Tensor, ...]:
        parts = []
        for group in self._groups(target):
            norm = squared_norm(group).sqrt().clamp(min=TINY)
            parts += [-t / per_problem(norm, t) for t in group]  # minus: one fused operation less per evaluation
        return tuple(parts)

    def unit(self, target: Sequence[Tensor]) -> Tensor:
        return torch.full_like(squared_norm(target), self.factor)

    def _groups(self, tensors: Sequence[Tensor]) -> list[list[Tensor]]:
        return [[t] for t in tensors] if self.per_layer else [list(tensors)]

    def __call__(self, gradient: Sequence[Tensor], target: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        groups = list(zip(self._groups(gradient), self._groups(target), strict=True))
        weight = self.factor / len(groups)
        values, slopes = [], []
        for mine, theirs in groups:
            scale = 1 / squared_norm(mine).sqrt().clamp(min=TINY)
            apart = [torch.addcmul(t, g, per_problem(scale, g)) for g, t in zip(mine, theirs, strict=True)]
            value = squared_norm(apart)
            # With u the unit gradient, t the unit target, a = u - t and v = |a|^2 the value itself:
            # dv/dg = 2/|g| (a - (v/2) u) = 2/|g| ((1 - v/2) a - (v/2) t). No cosine, hence no cancellation.
            near, far = 2 * weight * scale * (1 - value / 2), weight * scale * value
            for a, t in zip(apart, theirs, strict=True):
                slopes.append(a.mul_(per_problem(near, a)).addcmul_(t, per_problem(far, t)))
            values.append(weight * value)
        return torch.stack(values).sum(dim=0), tuple(slopes)
