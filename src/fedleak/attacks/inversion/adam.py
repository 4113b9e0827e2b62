"""Adam over a batch of independent problems: torch.optim.Adam, row by row, with a bias correction per row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedleak.attacks.inversion.optim import Evaluate, Outcome

__all__ = ["Adam", "AdamState"]


@dataclass(eq=False)
class AdamState:
    """Per row: running means of the slope and of its square, and how many iterations made them."""

    mean: Tensor
    square: Tensor
    iterations: Tensor

    def take(self, rows: Tensor) -> AdamState:
        return AdamState(self.mean[rows], self.square[rows], self.iterations[rows])

    def forget(self, rows: Tensor) -> None:
        self.mean[rows] = 0
        self.square[rows] = 0
        self.iterations[rows] = 0


@dataclass(frozen=True)
class Adam:
    """One advance is one iteration, as the papers count them. A slope within `tolerance_grad` ends a row.

    With `signed` only the signs of the slope are used (Geiping et al.). After as many iterations as each of
    `milestones` says, the step length falls to a tenth.
    """

    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    tolerance_grad: float = 0.0
    signed: bool = False
    milestones: tuple[int, ...] = ()

    def begin(self, points: Tensor) -> AdamState:
        return AdamState(torch.zeros_like(points), torch.zeros_like(points), points.new_zeros(len(points)))

    def advance(self, points: Tensor, state: AdamState, evaluate: Evaluate) -> Outcome:
        values, slopes = evaluate(points, torch.arange(len(points), device=points.device))
        broken = ~(values.isfinite() & slopes.isfinite().all(dim=1))
        finished = ~broken & (slopes.abs().amax(dim=1) <= self.tolerance_grad)
        slopes = torch.where((broken | finished)[:, None], 0, slopes)
        if self.signed:
            slopes = slopes.sign()
        first, second = self.betas
        state.iterations = state.iterations + 1
        state.mean = torch.lerp(state.mean, slopes, 1 - first)
        state.square = state.square * second + slopes.square() * (1 - second)
        mean = state.mean / (1 - first**state.iterations)[:, None]
        root = state.square.sqrt() / (1 - second**state.iterations).sqrt()[:, None]
        step = mean / (root + self.epsilon) * self.lr
        for milestone in self.milestones:
            step = torch.where((state.iterations > milestone)[:, None], step / 10, step)
        points = torch.where((broken | finished)[:, None], points, points - step)
        return Outcome(points, values, finished, broken, torch.ones_like(state.iterations))
