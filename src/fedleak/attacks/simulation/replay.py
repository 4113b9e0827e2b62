"""Who runs the steps: plain calls, or on a GPU one step forward and one back recorded as CUDA graphs and replayed.

One step is recorded, not the whole run: recording costs the same for 10 steps as for 500, and the steps share their
working memory. What a step keeps is copied to its slot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from fedleak.attacks.simulation.generic_steps import Steps

__all__ = ["Direct", "Recorded", "Runner"]

Batch = tuple[Tensor, Tensor, Tensor | None]
"""Inputs, labels and shares of one step."""


Work = Callable[[], list[Tensor]]


class Replayable(Protocol):
    def replay(self) -> None: ...


class Runner(Protocol):
    """A state that goes forward and back; what a step keeps lies in a slot."""

    state: list[Tensor]

    def begin(self, state: list[Tensor]) -> None: ...

    def forward(self, slot: int, batch: Batch) -> None: ...

    def aim(self, adjoint: list[Tensor]) -> None: ...

    def backward(self, slot: int, batch: Batch) -> Tensor: ...


class Direct:
    """Every operation is called when its turn comes."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.state: list[Tensor] = []
        self.adjoint: list[Tensor] = []
        self.kept: dict[int, list[Tensor]] = {}

    def begin(self, state: list[Tensor]) -> None:
        self.state = state

    def forward(self, slot: int, batch: Batch) -> None:
        self.kept[slot] = self.steps.forward(self.state, *batch)

    def aim(self, adjoint: list[Tensor]) -> None:
        self.adjoint = adjoint

    def backward(self, slot: int, batch: Batch) -> Tensor:
        return self.steps.backward(self.state, self.adjoint, self.kept.pop(slot), *batch)


class Recorded:
    """Steps of `width` victims as two CUDA graphs. Fewer victims fill the front of its tensors; what lies behind them
    is computed and not looked at."""

    def __init__(self, steps: Steps, width: int, slots: int) -> None:
        self.steps, self.width, self.slots = steps, width, slots
        self.state: list[Tensor] = []
        self.adjoint: list[Tensor] = []
        self._batch: Batch | None = None
        self._kept: list[Tensor] = []
        self._store: list[Tensor] = []
        self._slope: Tensor | None = None
        self._ahead: Replayable | None = None
        self._back: Replayable | None = None
        self._pool: Any = None

    def begin(self, state: list[Tensor]) -> None:
        if not self.state:
            self.state = [one.new_zeros(self.width, *one.shape[1:]) for one in state]
            self.adjoint = [torch.zeros_like(one) for one in self.state]
        _fill(self.state, state)

    def forward(self, slot: int, batch: Batch) -> None:
        self._take(batch)
        if self._ahead is None:
            self._kept, self._ahead = self._record(lambda: self.steps.forward(self.state, *self._mine()))
        self._ahead.replay()
        for one, mine in zip(self._store, self._kept, strict=True):
            one[slot].copy_(mine)

    def aim(self, adjoint: list[Tensor]) -> None:
        for one in self.adjoint:
            one[len(adjoint[0]) :].zero_()  # left from an earlier call, it would grow from call to call
        _fill(self.adjoint, adjoint)

    def backward(self, slot: int, batch: Batch) -> Tensor:
        self._take(batch)
        for one, mine in zip(self._store, self._kept, strict=True):
            mine.copy_(one[slot])
        if self._back is None:
            work = self.steps.backward
            (self._slope,), self._back = self._record(
                lambda: [work(self.state, self.adjoint, self._kept, *self._mine())]
            )
        self._back.replay()
        assert self._slope is not None
        return self._slope[: len(batch[0])]

    def _mine(self) -> Batch:
        assert self._batch is not None
        return self._batch

    def _take(self, batch: Batch) -> None:
        if self._batch is None:
            inputs, labels, share = (
                None if one is None else one.new_zeros(self.width, *one.shape[1:]) for one in batch
            )
            assert inputs is not None
            assert labels is not None
            self._batch = inputs, labels, share
        for mine, theirs in zip(self._batch, batch, strict=True):
            if mine is not None and theirs is not None:
                mine[: len(theirs)].copy_(theirs)

    def _record(self, work: Work) -> tuple[list[Tensor], Replayable]:
        """A graph of `work`, and its results; the tensors that it works on are left as they were."""
        before = [one.clone() for one in (*self.state, *self.adjoint)]
        made = self._first_run(work)
        if not self._store:
            self._store = [one.new_empty(self.slots, *one.shape) for one in made]
        for one, old in zip((*self.state, *self.adjoint), before, strict=True):
            one.copy_(old)
        del made, before
        return self._capture(work)

    def _first_run(self, work: Work) -> list[Tensor]:
        """torch wants a first run on another stream before it records."""
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            made = work()
        torch.cuda.current_stream().wait_stream(aside)
        return made

    def _capture(self, work: Work) -> tuple[list[Tensor], Replayable]:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            made = work()
        return made, graph


def _fill(mine: list[Tensor], theirs: list[Tensor]) -> None:
    for one, other in zip(mine, theirs, strict=True):
        one[: len(other)].copy_(other)
