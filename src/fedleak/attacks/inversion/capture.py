"""An evaluation recorded once as a CUDA graph and replayed: one launch instead of hundreds.

A graph has fixed tensors. Its batch is as wide as when it was recorded; fewer rows fill the front of it, and what is
left behind them from earlier calls is computed and not looked at. Anything that goes wrong while recording ends the
recording for good, with the reason in `trouble`, and evaluations are computed as if it did not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Replay", "Work"]

Work = Callable[[Tensor, Sequence[Tensor]], tuple[Tensor, Tensor]]

WORTH = 3
"""Calls of one batch size before it is recorded: recording costs about as much as a few calls."""

KEPT = 4
"""Graphs that are kept, each with tensors of its own; the oldest makes room."""


@dataclass(eq=False)
class _Graph:
    graph: torch.cuda.CUDAGraph
    points: Tensor
    given: tuple[Tensor, ...]
    values: Tensor
    slopes: Tensor
    holds: Sequence[Tensor] | None = None
    """What `given` was last filled from: the same object need not be copied again."""

    def __call__(self, points: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        rows = len(points)
        self.points[:rows].copy_(points)
        if given is not self.holds:
            for mine, theirs in zip(self.given, given, strict=True):
                mine[:rows].copy_(theirs)
            self.holds = given
        self.graph.replay()
        return self.values[:rows].clone(), self.slopes[:rows].clone()


class Replay:
    """`work(points, given)`, replayed where its batch size was seen often enough. Every call must be independent of
    the values of its tensors: no branch on a number, no random draw."""

    def __init__(self, work: Work) -> None:
        self.work, self.trouble = work, ""
        self._graphs: dict[int, _Graph] = {}
        self._seen: dict[int, int] = {}

    def __call__(self, points: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        if self.trouble:
            return self.work(points, given)
        rows = len(points)
        width = min((w for w in self._graphs if rows <= w < 2 * rows), default=None)
        if width is not None:
            return self._graphs[width](points, given)
        self._seen[rows] = self._seen.get(rows, 0) + 1
        if self._seen[rows] >= WORTH:
            try:
                self._record(points, given)
                return self._graphs[rows](points, given)
            except Exception as error:  # torch raises many kinds here, and all of them have the same way out
                self._graphs.clear()
                self.trouble = f"evaluations are not replayed as a CUDA graph ({type(error).__name__}: {error})"
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
        return self.work(points, given)

    def _record(self, points: Tensor, given: Sequence[Tensor]) -> None:
        own, copies = points.detach().clone(), tuple(one.clone() for one in given)
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # torch wants a first run on another stream before it records
            self.work(own, copies)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            values, slopes = self.work(own, copies)
        if len(self._graphs) >= KEPT:
            self._graphs.pop(next(iter(self._graphs)))
        self._graphs[len(points)] = _Graph(graph, own, copies, values, slopes)
