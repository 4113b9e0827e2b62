"""The search: victims enter a batch of rows, every row is one attempt, and a row that is done makes room.

An attempt ends when its objective reaches the goal, when a tolerance is met, when it stops making progress, when it
meets a number that is not finite, or when its steps are used up. A victim whose goal was not reached is tried again
from a fresh start while it has restarts left; of its attempts the one with the smallest objective counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fedleak.attacks.inversion.optim import RowOptimiser

__all__ = ["Attempt", "Ending", "Rules", "search"]

Ending = Literal["goal", "tolerance", "stagnated", "diverged", "steps", "running"]


@dataclass(frozen=True)
class Rules:
    """When an attempt ends and whether another one follows.

    `steps` are outer iterations of one attempt. An attempt stagnates when its best objective fell by less than the
    share `min_progress` within the last `patience` steps; a patience of 0 never gives up.
    """

    steps: int
    restarts: int = 0
    patience: int = 0
    min_progress: float = 0.0


@dataclass(eq=False)
class Attempt:
    """One start of one victim: its trace, some points on the way, and the best point it evaluated."""

    victim: int
    number: int
    best: float = float("inf")
    point: Tensor | None = None
    trace: list[float] = field(default_factory=list)
    lows: list[float] = field(default_factory=list)
    snapshots: dict[int, Tensor] = field(default_factory=dict)
    ending: Ending = "running"

    @property
    def steps(self) -> int:
        return len(self.trace)


def search(
    evaluate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    draw: Callable[[int, int], Tensor],
    goals: Sequence[float],
    optimiser: RowOptimiser[Any],
    rules: Rules,
    *,
    width: int,
    keep: frozenset[int] = frozenset(),
    after_step: Callable[[Sequence[Attempt]], None] = lambda rows: None,
) -> list[list[Attempt]]:
    """All attempts of every victim, in order.

    `evaluate(points, victims)` gives values and slopes, `draw(victim, number)` a start; at most `width` attempts run
    at once; `keep` names the steps at which points are kept.
    """
    done: list[list[Attempt]] = [[] for _ in goals]
    waiting = deque(range(len(goals)))
    rows = [Attempt(waiting.popleft(), 0) for _ in range(min(width, len(goals)))]
    if not rows:
        return done
    points = torch.stack([draw(row.victim, row.number) for row in rows])
    state = optimiser.begin(points)
    best = _Best(points)
    while rows:
        victims = torch.tensor([row.victim for row in rows], device=points.device)
        for at, row in enumerate(rows):
            if row.steps in keep:
                row.snapshots[row.steps] = points[at].clone()
        outcome = optimiser.advance(points, state, best.watching(evaluate, victims))
        points = outcome.points
        told = zip(outcome.values.tolist(), best.values.tolist(), strict=True)
        for at, (row, (value, low)) in enumerate(zip(rows, told, strict=True)):
            row.trace.append(value)
            row.lows.append(low)
            row.ending = _ending(row, goals[row.victim], rules, bool(outcome.broken[at]), bool(outcome.finished[at]))
        after_step(rows)
        stay: list[int] = []
        fresh: list[int] = []
        for at, row in enumerate(rows):
            if row.ending == "running":
                stay.append(at)
                continue
            row.best, row.point = row.lows[-1], best.points[at].clone()
            done[row.victim].append(row)
            follower = _follower(row, rules, waiting)
            if follower is not None:
                rows[at] = follower
                points[at] = draw(follower.victim, follower.number)
                fresh.append(at)
                stay.append(at)
        if fresh:
            again = torch.tensor(fresh, device=points.device)
            state.forget(again)
            best.forget(again, points)
        if len(stay) < len(rows):
            left = torch.tensor(stay, dtype=torch.long, device=points.device)
            rows = [rows[at] for at in stay]
            points, state, best = points[left], state.take(left), best.take(left)
    return done


def _ending(row: Attempt, goal: float, rules: Rules, broken: bool, finished: bool) -> Ending:
    if row.lows[-1] <= goal:
        return "goal"
    if broken:
        return "diverged"
    if finished:
        return "tolerance"
    if row.steps >= rules.steps:
        return "steps"
    if 0 < rules.patience < row.steps:
        before = row.lows[-1 - rules.patience]
        if not row.lows[-1] < (1 - rules.min_progress) * before:
            return "stagnated"
    return "running"


def _follower(row: Attempt, rules: Rules, waiting: deque[int]) -> Attempt | None:
    """What takes the place of a finished attempt: another start of its victim, else a victim that waits, else none."""
    if row.ending != "goal" and row.number < rules.restarts:
        return Attempt(row.victim, row.number + 1)
    return Attempt(waiting.popleft(), 0) if waiting else None


class _Best:
    """The smallest finite value that every row has met, and where."""

    def __init__(self, points: Tensor) -> None:
        self.points = points.clone()
        self.values = points.new_full((len(points),), float("inf"))

    def watching(
        self, evaluate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], victims: Tensor
    ) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        def watched(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            values, slopes = evaluate(points, victims[rows])
            # A comparison with a value that is not a number is false: such a value never becomes the best.
            better = values < self.values[rows]
            self.values[rows] = torch.where(better, values, self.values[rows])
            self.points[rows] = torch.where(better[:, None], points, self.points[rows])
            return values, slopes

        return watched

    def forget(self, rows: Tensor, points: Tensor) -> None:
        self.values[rows] = float("inf")
        self.points[rows] = points[rows]

    def take(self, rows: Tensor) -> _Best:
        kept = _Best(self.points[rows])
        kept.values = self.values[rows]
        return kept
