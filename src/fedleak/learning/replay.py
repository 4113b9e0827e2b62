"""A training step recorded once as a CUDA graph and replayed: one launch instead of hundreds.

A graph has fixed tensors: each step's batch is copied into them. The first calls of a kind are computed, on a stream
aside as torch wants it, and are real steps. Anything that goes wrong while recording ends it for good, with the reason
in `trouble`; a step that is being recorded is not carried out, so nothing is half done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor

__all__ = ["StepReplay"]

Given = Sequence[Sequence[Tensor]]
"""For inputs and each target, one batch for each network of the group."""

Work = Callable[[tuple[int, ...], Callable[..., Tensor], Given], Tensor]
"""(group, loss, given) to the losses of a step that was taken."""

WORTH = 4
"""Calls of one kind before it is recorded: recording costs about as much as tens of steps."""

KEPT = 24
"""Graphs that are kept; the oldest makes room."""


@dataclass(eq=False)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    given: list[list[Tensor]]
    losses: Tensor

    def __call__(self, given: Given) -> Tensor:
        torch._foreach_copy_([mine for of in self.given for mine in of], [theirs for of in given for theirs in of])
        self.graph.replay()
        return self.losses.clone()


class StepReplay:
    """`work(group, loss, given)`, a method of the object that keeps this one, replayed where its kind (group, loss,
    shapes) was seen often enough."""

    def __init__(self, work: Work) -> None:
        # Held weakly: in a cycle the graphs of a stack nobody needs any more would keep gigabytes of a GPU's memory
        # until Python looks for cycles, which it does by counting objects.
        self._work = WeakMethod(work)
        self.trouble = ""
        self._graphs: dict[Any, _Recorded] = {}
        self._seen: dict[Any, int] = {}
        self._pool: Any = None
        self._aside: Any = None

    def work(self, group: tuple[int, ...], loss: Callable[..., Tensor], given: Given) -> Tensor:
        work = self._work()
        assert work is not None
        return work(group, loss, given)

    def forget(self) -> None:
        """Drop all recordings."""
        self._graphs.clear()
        self._seen.clear()

    def __call__(self, group: tuple[int, ...], loss: Callable[..., Tensor], given: Given, record: bool) -> Tensor:
        if not record or self.trouble:
            return self.work(group, loss, given)
        kind = (group, loss, tuple((value.shape, value.dtype) for of in given for value in of[:1]))
        if kind in self._graphs:
            return self._graphs[kind](given)
        self._seen[kind] = self._seen.get(kind, 0) + 1
        if self._seen[kind] > WORTH:
            try:
                self._graphs[kind] = self._record(group, loss, given)
            except Exception as error:  # torch raises many kinds here, and all of them have the same way out
                self.forget()
                self.trouble = f"steps are not replayed as a CUDA graph ({type(error).__name__}: {error})"
                torch.cuda.synchronize()
                return self.work(group, loss, given)
            while len(self._graphs) > KEPT:
                self._graphs.pop(next(iter(self._graphs)))
            return self._graphs[kind](given)
        return self._on_the_side(group, loss, given)

    def _on_the_side(self, group: tuple[int, ...], loss: Callable[..., Tensor], given: Given) -> Tensor:
        here = torch.cuda.current_stream()
        if self._aside is None:
            self._aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._aside.wait_stream(here)
        with torch.cuda.stream(self._aside):
            losses = self.work(group, loss, given)
        here.wait_stream(self._aside)
        # Made on one stream and used on others: torch must not hand the memory out again too early.
        for value in (losses, *(one for of in given for one in of)):
            value.record_stream(self._aside if value is not losses else here)
        return losses

    def _record(self, group: tuple[int, ...], loss: Callable[..., Tensor], given: Given) -> _Recorded:
        own = [[value.clone() for value in of] for of in given]
        torch.cuda.synchronize()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            losses = self.work(group, loss, own)
        return _Recorded(graph, own, losses)
