"""Adam over the dummies of many clients and starts at once.

Nothing in a step waits for the device: numbers stay where they are until the end. A row whose objective or slope is not
finite stops at its last finite iterate, and the others go on. Where a step does not fit the memory its rows are halved
and both halves go on from where they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedleak.types import Progress, silent

__all__ = ["Evaluate", "Found", "Schedule", "search"]

Evaluate = Callable[[Tensor, int], tuple[Tensor, Tensor]]
"""(points, step) to values (rows,) and slopes of the points' shape."""


@dataclass(frozen=True)
class Schedule:
    """The step length of Adam: "exponential" falls by `decay` every `every` steps, continuously; "cosine" falls to 0 at
    the last step."""

    lr: float
    steps: int
    kind: Literal["exponential", "cosine", "constant"] = "constant"
    decay: float = 1.0
    every: float = 1.0

    def __call__(self, step: int) -> float:
        if self.kind == "exponential":
            return float(self.lr * self.decay ** (step / self.every))
        if self.kind == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return self.lr


@dataclass(eq=False)
class _State:
    """Where a group of rows is: `safe` is the last iterate with a finite objective, `alive` who still moves."""

    rows: list[int]
    points: Tensor
    mean: Tensor
    square: Tensor
    safe: Tensor
    best: Tensor
    alive: Tensor
    trace: list[Tensor] = field(default_factory=list)
    kept: dict[int, Tensor] = field(default_factory=dict)

    def half(self, part: slice) -> _State:
        return _State(
            self.rows[part],
            self.points[part].clone(),
            self.mean[part].clone(),
            self.square[part].clone(),
            self.safe[part].clone(),
            self.best[part].clone(),
            self.alive[part].clone(),
            [one[part] for one in self.trace],
            {step: one[part] for step, one in self.kept.items()},
        )


@dataclass(frozen=True, eq=False)
class Found:
    """One row after the search: its last finite iterate, the objective there, the objective at every step (the value
    after the last step included), iterates on the way, and whether it went all the way."""

    point: Tensor
    objective: float
    trace: Tensor
    kept: Mapping[int, Tensor]
    finished: bool


BETAS, EPSILON = (0.9, 0.999), 1e-8


def search(
    make: Callable[[Sequence[int]], Evaluate],
    points: Tensor,
    schedule: Schedule,
    *,
    width: int,
    box: tuple[Tensor, Tensor] | None = None,
    keep: frozenset[int] = frozenset(),
    progress: Progress = silent,
) -> tuple[list[Found], int]:
    """Search every row of `points`, `width` at a time; `make(rows)` gives the objective of these rows.

    Returns what was found, in order, and the number of rows that were searched at once in the end.
    """
    found: dict[int, Found] = {}
    total, done, smallest = len(points) * schedule.steps, 0, min(width, len(points))
    waiting = [list(range(start, min(start + width, len(points)))) for start in range(0, len(points), width)]
    for rows in waiting:
        state = points[rows]
        begun = _State(
            rows,
            state.clone(),
            torch.zeros_like(state),
            torch.zeros_like(state),
            state.clone(),
            state.new_full((len(rows),), math.inf),
            torch.ones(len(rows), dtype=torch.bool, device=state.device),
        )
        groups = [(begun, 0)]
        while groups:
            current, step = groups.pop()
            smallest = min(smallest, len(current.rows))
            evaluate = make(current.rows)
            try:
                while step <= schedule.steps:
                    values, slopes = evaluate(current.points, step)
                    _advance(current, values, slopes, step, schedule, box, keep)
                    step += 1
                    if step <= schedule.steps:
                        done += len(current.rows)
                        progress(done, total)
            except torch.OutOfMemoryError:
                if len(current.rows) == 1:
                    raise
                del evaluate
                torch.cuda.empty_cache()
                middle = len(current.rows) // 2
                groups += [(current.half(slice(middle, None)), step), (current.half(slice(0, middle)), step)]
                continue
            found.update(_found(current))
    return [found[row] for row in range(len(points))], smallest


def _advance(
    state: _State,
    values: Tensor,
    slopes: Tensor,
    step: int,
    schedule: Schedule,
    box: tuple[Tensor, Tensor] | None,
    keep: frozenset[int],
) -> None:
    """Note where the rows are and, unless this was the last evaluation, move them."""
    if step in keep:
        state.kept[step] = state.points.to("cpu", copy=True)
    finite = values.isfinite() & slopes.flatten(1).isfinite().all(dim=1)
    state.alive = state.alive & finite
    shape = (-1, *[1] * (slopes.dim() - 1))
    moves = state.alive.reshape(shape)
    state.safe = torch.where(moves, state.points, state.safe)
    state.best = torch.where(state.alive, values, state.best)
    state.trace.append(torch.where(finite, values, state.best))
    if step >= schedule.steps:
        return
    slopes = torch.where(moves, slopes, 0)
    first, second = BETAS
    state.mean.lerp_(slopes, 1 - first)
    state.square.mul_(second).addcmul_(slopes, slopes, value=1 - second)
    root = (state.square / (1 - second ** (step + 1))).sqrt_().add_(EPSILON)
    moved = torch.addcdiv(state.points, state.mean, root, value=-schedule(step) / (1 - first ** (step + 1)))
    if box is not None:
        moved = torch.maximum(torch.minimum(moved, box[1]), box[0])
    state.points = torch.where(moves, moved, state.points)


def _found(state: _State) -> dict[int, Found]:
    best, finished = state.best.tolist(), state.alive.tolist()
    trace = torch.stack(state.trace, dim=1).cpu()
    return {
        row: Found(state.safe[at], best[at], trace[at], {s: one[at] for s, one in state.kept.items()}, finished[at])
        for at, row in enumerate(state.rows)
    }
