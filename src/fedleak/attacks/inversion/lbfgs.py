"""L-BFGS over a batch of independent problems, each with its own curvature.

On one problem the iterates are those of torch.optim.LBFGS without line search. The two-loop recursion is written as
two triangular systems (Byrd, Nocedal and Schnabel 1994), so that a direction costs a few batched matrix products
instead of a Python loop over the history:

    first loop    R a = S q             R_ij = s_i . y_j for j at least as new as i
    second loop   R' c = diag(R) a - Y r
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedleak.attacks.inversion.optim import Evaluate, Outcome

__all__ = ["LBFGS", "LBFGSState"]


@dataclass(eq=False)
class LBFGSState:
    """What L-BFGS remembers about every row.

    `steps` and `changes` hold the pairs in a ring of slots, `upper` their products s_i . y_j from oldest to newest.
    """

    steps: Tensor
    changes: Tensor
    upper: Tensor
    count: Tensor
    iterations: Tensor
    scale: Tensor
    direction: Tensor
    length: Tensor
    slope: Tensor
    value: Tensor
    least_curvature: float = 1e-10
    waits: bool = True
    """Whether the host may ask which rows something holds for; it would have to wait for a GPU."""
    most: int = 0
    """How many pairs any row can have been offered, known without asking."""

    def take(self, rows: Tensor) -> LBFGSState:
        tensors = {name: value[rows] for name, value in vars(self).items() if isinstance(value, Tensor)}
        return LBFGSState(**tensors, least_curvature=self.least_curvature, waits=self.waits, most=self.most)

    def forget(self, rows: Tensor) -> None:
        for name in ("count", "iterations"):
            getattr(self, name)[rows] = 0
        self.upper[rows] = torch.eye(self.upper.shape[1], dtype=self.upper.dtype, device=self.upper.device)
        for name in ("steps", "changes", "direction", "length", "slope", "value"):
            getattr(self, name)[rows] = 0
        self.scale[rows] = 1

    def remember(self, step: Tensor, change: Tensor, wanted: Tensor) -> None:
        """Store one pair in every wanted row that has enough curvature, over its oldest pair when the ring is full.

        All rows are computed and the wanted ones kept, so that nobody need ask which they are.
        """
        curvature = torch.linalg.vecdot(change, step)
        wanted = wanted & (curvature > self.least_curvature)
        if self.waits and not wanted.any():
            return
        history, rows = self.steps.shape[1], torch.arange(len(wanted), device=wanted.device)
        slot, wide = self.count % history, wanted[:, None]
        self.steps[rows, slot] = torch.where(wide, step, self.steps[rows, slot])
        self.changes[rows, slot] = torch.where(wide, change, self.changes[rows, slot])
        if self.most >= history:
            full = wanted & (self.count >= history)
            self.upper = torch.where(full[:, None, None], self.upper.roll((-1, -1), dims=(1, 2)), self.upper)
        self.count = self.count + wanted
        self.most += 1
        used, order = self._oldest_first()
        newest = (self.count.clamp(max=history) - 1).clamp(min=0)
        place = torch.arange(history, device=wanted.device)
        column = torch.zeros_like(self.upper[:, :, 0])
        column[:, :used] = _along(self.steps[:, :used], change).gather(1, order)
        column = torch.where(place <= newest[:, None], column, 0)
        self.upper[rows, :, newest] = torch.where(wide, column, self.upper[rows, :, newest])
        row = torch.where(place == newest[:, None], curvature[:, None], 0)
        self.upper[rows, newest, :] = torch.where(wide, row, self.upper[rows, newest, :])
        self.scale = torch.where(wanted, curvature / torch.linalg.vecdot(change, change), self.scale)

    def _oldest_first(self) -> tuple[int, Tensor]:
        """How many slots are in use in any row, and per row those slots from oldest to newest.

        Slots that a row has not filled hold zero vectors and a unit diagonal: they contribute nothing.
        """
        history = self.steps.shape[1]
        used = min(int(self.count.max()) if self.waits else self.most, history)
        begin = torch.where(self.count > history, self.count % history, 0)
        return used, (torch.arange(used, device=self.count.device) + begin[:, None]) % max(used, 1)

    def newton(self, slope: Tensor) -> Tensor:
        """Minus the inverse-Hessian estimate times the slope."""
        used, order = self._oldest_first()
        if used == 0:
            return -slope * self.scale[:, None]
        steps, changes, upper = self.steps[:, :used], self.changes[:, :used], self.upper[:, :used, :used]
        right = -_along(steps, slope).gather(1, order)
        first = torch.linalg.solve_triangular(upper, right[:, :, None], upper=True).squeeze(2)
        rest = -slope - _combine(changes, first, order)
        scaled = rest * self.scale[:, None]
        right = upper.diagonal(dim1=1, dim2=2) * first - _along(changes, scaled).gather(1, order)
        second = torch.linalg.solve_triangular(upper.mT, right[:, :, None], upper=False).squeeze(2)
        return scaled + _combine(steps, second, order)


def _along(vectors: Tensor, one: Tensor) -> Tensor:
    """(b, m, size) and (b, size) to the inner products (b, m). As row times matrix: fifteen times faster on a CPU."""
    return torch.bmm(one[:, None], vectors.mT).squeeze(1)


def _combine(vectors: Tensor, weights: Tensor, order: Tensor) -> Tensor:
    """The sum of the vectors, each with its weight; the weights are given in `order`."""
    return torch.bmm(torch.empty_like(weights).scatter_(1, order, weights)[:, None], vectors).squeeze(1)


@dataclass(frozen=True)
class LBFGS:
    """torch.optim.LBFGS without line search, for many problems at once.

    One advance is one `step()` of torch: up to `inner` iterations, ended early, until the next advance, by a change
    below `tolerance_change`, and for good by a slope within `tolerance_grad` or a direction that does not descend.

    A pair (s, y) with s . y at or below `tolerance_curvature` is not remembered. 1e-10 is torch's, which cannot be set
    there; on an objective of order 1 nothing new is learned from about 1e-7 on.

    `max_step` bounds the root mean square of a step; 0 is torch's behaviour, no bound. Without one the first few steps,
    taken on little curvature, throw some problems so far out that sigmoids saturate and nothing brings them back.
    """

    lr: float = 1.0
    history: int = 100
    inner: int = 20
    tolerance_grad: float = 1e-7
    tolerance_change: float = 1e-9
    tolerance_curvature: float = 1e-10
    max_step: float = 0.0
    waits: bool | None = None
    """Whether rows that stand still are left out of an evaluation; none: on a CPU they are, on a GPU it costs more than
    it saves, since the host must wait to know them."""

    def begin(self, points: Tensor) -> LBFGSState:
        rows, size = points.shape
        return LBFGSState(
            steps=points.new_zeros(rows, self.history, size),
            changes=points.new_zeros(rows, self.history, size),
            upper=torch.eye(self.history, dtype=points.dtype, device=points.device).repeat(rows, 1, 1),
            count=points.new_zeros(rows, dtype=torch.long),
            iterations=points.new_zeros(rows, dtype=torch.long),
            scale=points.new_ones(rows),
            direction=torch.zeros_like(points),
            length=points.new_zeros(rows),
            slope=torch.zeros_like(points),
            value=points.new_zeros(rows),
            least_curvature=self.tolerance_curvature,
            waits=not points.is_cuda if self.waits is None else self.waits,
        )

    def advance(self, points: Tensor, state: LBFGSState, evaluate: Evaluate) -> Outcome:
        count = len(points)
        points = points.clone()
        moving = torch.ones(count, dtype=torch.bool, device=points.device)
        every, evaluations = torch.arange(count, device=points.device), torch.zeros_like(state.count)
        finished, broken = torch.zeros_like(moving), torch.zeros_like(moving)
        values, slopes = points.new_zeros(count), torch.zeros_like(points)
        began = values
        for inner in range(self.inner):
            rows = moving.nonzero().squeeze(1) if state.waits and not moving.all() else every
            if len(rows) == 0:
                break
            if rows is every:
                values, slopes = evaluate(points, rows)
            else:
                values[rows], slopes[rows] = evaluate(points[rows], rows)
            evaluations = evaluations + moving
            if inner == 0:
                began = values.clone()
            bad = moving & ~(values.isfinite() & slopes.isfinite().all(dim=1))
            flat = moving & ~bad & (slopes.abs().amax(dim=1) <= self.tolerance_grad)
            broken, finished = broken | bad, finished | flat
            moving = moving & ~bad & ~flat
            if inner > 0:
                small = (state.direction.abs().amax(dim=1) * state.length).abs() <= self.tolerance_change
                moving = moving & ~(small | ((values - state.value).abs() < self.tolerance_change))
            moving, stuck = self._move(points, values, slopes, state, moving)
            finished = finished | stuck
        return Outcome(points, began, finished, broken, evaluations)

    def _move(
        self, points: Tensor, values: Tensor, slopes: Tensor, state: LBFGSState, moving: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One iteration of the moving rows, in place. Returns which rows moved and which can never move again."""
        known = state.iterations > 0
        state.remember(state.direction * state.length[:, None], slopes - state.slope, moving & known)
        direction = state.newton(slopes)
        length = torch.where(known, self.lr, self.lr * (1 / slopes.abs().sum(dim=1)).clamp(max=1))
        if self.max_step > 0:
            rms = torch.linalg.vector_norm(direction, dim=1) / direction.shape[1] ** 0.5
            length = length * (self.max_step / (rms * length)).clamp(max=1)
        descends = torch.linalg.vecdot(slopes, direction) <= -self.tolerance_change
        moved = moving & descends
        # Also where the direction does not descend the state is replaced, as torch does: asked again at the same point,
        # such a row finds no new pair, hence the same direction, and stands still for good.
        wide = moving[:, None]
        state.direction = torch.where(wide, direction, state.direction)
        state.slope = torch.where(wide, slopes, state.slope)
        state.length = torch.where(moving, length, state.length)
        state.value = torch.where(moving, values, state.value)
        state.iterations = state.iterations + moving
        points += torch.where(moved[:, None], direction * length[:, None], 0)
        return moved, moving & ~descends
