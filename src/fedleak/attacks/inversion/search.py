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

from fedleak.attacks.inversion.optim import Evaluate, RowOptimiser
from fedleak.types import Progress, silent

__all__ = ["Attempt", "Ending", "Rules", "search"]

Ending = Literal["goal", "tolerance", "stagnated", "diverged", "steps", "running"]


@dataclass(frozen=True)
class Rules:
    """When an attempt ends and whether another one follows.

    `steps` are outer iterations of one attempt. An attempt stagnates when its best objective fell by less than the
    share `min_progress` within the last `patience` steps; a patience of 0 never gives up. Two starts whose objectives
    ended within the share `agreement` of each other found the same floor (noise on the update, say): no third one.
    Nor does a victim get one whose objective fell to `enough` goals: it ran out of precision, not of luck.
    """

    steps: int
    restarts: int = 0
    patience: int = 0
    min_progress: float = 0.0
    agreement: float = 0.0
    enough: float = 1.0

    def restart(self, tries: Sequence[Attempt], goal: float) -> bool:
        """Whether the victim of these attempts, the last of which has just ended, gets a fresh start."""
        last = tries[-1]
        if last.best <= self.enough * goal or len(tries) > self.restarts:
            return False
        if last.ending == "steps" and self.patience > 0:
            return False  # it was still making progress: another start would need as many steps again
        # Starts that met no finite value have an infinite objective: they agree with nothing.
        return not any(abs(last.best - other.best) < self.agreement * other.best for other in tries[:-1])


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
    evaluations: int = 0
    ending: Ending = "running"

    @property
    def steps(self) -> int:
        return len(self.trace)


def search(
    evaluate: Evaluate,
    draw: Callable[[int, int], Tensor],
    goals: Sequence[float],
    optimiser: RowOptimiser[Any],
    rules: Rules,
    *,
    width: int,
    keep: frozenset[int] = frozenset(),
    box: tuple[Tensor, Tensor] | None = None,
    progress: Progress = silent,
) -> list[list[Attempt]]:
    """All attempts of every victim, in order.

    `evaluate(points, victims)` gives values and slopes, `draw(victim, number)` a start; at most `width` attempts run
    at once; `keep` names the steps at which points are kept; after every step points are moved into the `box` (least,
    largest). Progress counts outer steps: a victim counts at most one
    attempt's worth, and all of it once it is done.
    """
    done: list[list[Attempt]] = [[] for _ in goals]
    taken = [0] * len(goals)
    waiting = deque(range(len(goals)))
    rows = [Attempt(waiting.popleft(), 0) for _ in range(min(width, len(goals)))]
    if not rows:
        return done
    batch = _Batch(rows, torch.stack([draw(row.victim, row.number) for row in rows]), optimiser, box)
    while batch.rows:
        batch.advance(evaluate, goals, rules, keep)
        following: list[Attempt | None] = []
        for at, row in enumerate(batch.rows):
            taken[row.victim] = max(taken[row.victim], row.steps)
            following.append(row)
            if row.ending != "running":
                row.best, row.point = row.lows[-1], batch.best.points[at].clone()
                done[row.victim].append(row)
                again = rules.restart(done[row.victim], goals[row.victim])
                if again:
                    following[at] = Attempt(row.victim, len(done[row.victim]))
                else:
                    taken[row.victim] = rules.steps
                    following[at] = Attempt(waiting.popleft(), 0) if waiting else None
        batch.follow(following, draw)
        progress(sum(taken), rules.steps * len(goals))
    return done


class _Batch:
    """The attempts that are under way, one row each."""

    def __init__(
        self,
        rows: list[Attempt],
        points: Tensor,
        optimiser: RowOptimiser[Any],
        box: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.rows, self.points, self.optimiser, self.box = rows, points, optimiser, box
        self.state = optimiser.begin(points)
        self.best = _Best(points)
        self._tell_victims()

    def _tell_victims(self) -> None:
        """As one tensor that stays the same object while the rows do: who sees it again need not look at it."""
        self.victims = torch.tensor([row.victim for row in self.rows], device=self.points.device).long()

    def advance(self, evaluate: Evaluate, goals: Sequence[float], rules: Rules, keep: frozenset[int]) -> None:
        """One outer iteration of every row, written into its attempt."""
        for at, row in enumerate(self.rows):
            if row.steps in keep:
                row.snapshots[row.steps] = self.points[at].clone()
        outcome = self.optimiser.advance(self.points, self.state, self.best.watching(evaluate, self.victims))
        self.points = outcome.points if self.box is None else outcome.points.clamp(*self.box)
        facts = (outcome.values, self.best.values, outcome.broken, outcome.finished, outcome.evaluations)
        # As one tensor: the host waits for a GPU once.
        for row, told in zip(self.rows, torch.stack([f.double() for f in facts], dim=1).tolist(), strict=True):
            value, low, broken, finished, evaluations = told
            row.trace.append(value)
            row.lows.append(low)
            row.evaluations += int(evaluations)
            row.ending = _ending(row, goals[row.victim], rules, bool(broken), bool(finished))

    def follow(self, following: Sequence[Attempt | None], draw: Callable[[int, int], Tensor]) -> None:
        """Rows go on, begin anew as another attempt, or leave the batch."""
        device = self.points.device
        fresh = [at for at, row in enumerate(following) if row is not None and row is not self.rows[at]]
        for at in fresh:
            row = following[at]
            assert row is not None
            self.points[at] = draw(row.victim, row.number)
        if fresh:
            begun = torch.tensor(fresh, device=device)
            self.state.forget(begun)
            self.best.forget(begun, self.points)
        self.rows = [row for row in following if row is not None]
        if len(self.rows) < len(following):
            left = torch.tensor([at for at, row in enumerate(following) if row is not None], device=device).long()
            self.points, self.state, self.best = self.points[left], self.state.take(left), self.best.take(left)
        if fresh or len(self.rows) < len(following):
            self._tell_victims()


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


class _Best:
    """The smallest finite value that every row has met, and where."""

    def __init__(self, points: Tensor) -> None:
        self.points = points.clone()
        self.values = points.new_full((len(points),), float("inf"))

    def watching(self, evaluate: Evaluate, victims: Tensor) -> Evaluate:
        def watched(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            everybody = len(rows) == len(victims)
            values, slopes = evaluate(points, victims if everybody else victims[rows])
            # A comparison with a value that is not a number is false: such a value never becomes the best.
            if everybody:
                better = values < self.values
                self.values = torch.where(better, values, self.values)
                self.points = torch.where(better[:, None], points, self.points)
            else:
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
