"""DLM's distances: the scale between the dummies' gradient and the update is unknown (dlm.txt eq. 3).

    L(x, y, gamma) = |g(x, y) - gamma D|^2,    D = broadcast - sent

For a fixed dummy the best gamma is <g, D> / |D|^2. The objective has a degenerate minimum: it falls to 0 as g and gamma
fall to 0 together, at a dummy that the network classifies perfectly. That is why the start of gamma matters (fig. 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedleak.attacks.inversion.distances import per_problem, squared_norm

__all__ = ["BestScale", "FreeScale"]

TINY = 1e-30
"""Below this squared norm the update has no direction, and no scale is best."""


def _inner(one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
    pairs = [(a.flatten(1), b.flatten(1)) for a, b in zip(one, other, strict=True)]
    return torch.stack([torch.linalg.vecdot(a, b) for a, b in pairs]).sum(dim=0)


@dataclass(frozen=True)
class FreeScale:
    """Eq. 3 with gamma as one more unknown (eq. 4), which begins at `gamma`.

    The search moves u = gamma / `gauge`. The paper's gauge is 1: gamma as it is, about a hundred where pixels are about
    one, so that it stays near its start. With a gauge as large as gamma the search reaches the degenerate minimum.
    """

    gamma: float = 120.0
    gauge: float = 1.0

    @property
    def start(self) -> tuple[float, ...]:
        return (self.gamma / self.gauge,)

    def prepare(self, target: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(target)

    def unit(self, target: Sequence[Tensor]) -> Tensor:
        return self.gamma**2 * squared_norm(target)

    def joint(
        self, gradient: Sequence[Tensor], target: Sequence[Tensor], unknown: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        gamma = self.gauge * unknown[:, 0]
        apart = [torch.addcmul(g, per_problem(gamma, t), t, value=-1) for g, t in zip(gradient, target, strict=True)]
        slope = -2 * self.gauge * _inner(apart, target)
        return squared_norm(apart), tuple(2 * a for a in apart), slope[:, None]


@dataclass(frozen=True)
class BestScale:
    """Eq. 3 at the best gamma for every dummy, in closed form: the part of g at right angles to D, squared.

    By the envelope theorem the slope is that of eq. 3 with gamma held at its best. `gamma` only says what the goal of
    the search is measured with.
    """

    gamma: float = 120.0

    def prepare(self, target: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(target)

    def unit(self, target: Sequence[Tensor]) -> Tensor:
        return self.gamma**2 * squared_norm(target)

    def best(self, gradient: Sequence[Tensor], target: Sequence[Tensor]) -> Tensor:
        """gamma = <g, D> / |D|^2, one per problem."""
        return _inner(gradient, target) / squared_norm(target).clamp(min=TINY)

    def __call__(self, gradient: Sequence[Tensor], target: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        gamma = self.best(gradient, target)
        apart = [torch.addcmul(g, per_problem(gamma, t), t, value=-1) for g, t in zip(gradient, target, strict=True)]
        return squared_norm(apart), tuple(2 * a for a in apart)
