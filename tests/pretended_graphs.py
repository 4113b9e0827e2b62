"""CUDA graphs without a GPU: what is done while one is recorded is written down and undone, and replayed on demand.

Like a real graph: a recording carries nothing out, it always works on the tensors that it was made with, Python is not
asked again, and nothing may be read from the device on the way. Streams are there, and do nothing.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedleak.learning.replay import StepReplay

__all__ = ["Always", "Graph", "pretend"]

READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select"}
UNSAID = {"aten::native_batch_norm": slice(3, 5)}
"""Arguments that an operation changes although its schema does not say so: the running statistics."""


class Always(StepReplay):
    """Takes every step as it is taken on a GPU."""

    def __call__(self, group: tuple[int, ...], loss: Callable[..., Tensor], given: Any, record: bool) -> Tensor:
        return super().__call__(group, loss, given, True)


class Graph:
    """Stands for torch.cuda.CUDAGraph; `alive` are those that somebody holds."""

    alive: ClassVar[weakref.WeakSet[Graph]] = weakref.WeakSet()

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.played = 0
        Graph.alive.add(self)

    def replay(self) -> None:
        self.played += 1
        with torch.no_grad():
            for function, args, kwargs, made in self.calls:
                again = function(*args, **kwargs)
                for kept, fresh in zip(tree_leaves(made), tree_leaves(again), strict=True):
                    if isinstance(kept, Tensor) and kept.data_ptr() != fresh.data_ptr():
                        kept.copy_(fresh)


class _Recorder(TorchDispatchMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, schema = kwargs or {}, function._schema
        if schema.name in READS:
            raise RuntimeError(f"{schema.name}: operation not permitted when stream is capturing")
        named = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | kwargs
        written = [named.get(one.name) for one in schema.arguments if one.alias_info and one.alias_info.is_write]
        for value in tree_leaves([written, args[UNSAID.get(schema.name, slice(0))]]):
            if isinstance(value, Tensor):
                self._before.setdefault(value.data_ptr(), (value, value.detach().clone()))
        made = function(*args, **kwargs)
        self._graph.calls.append((function, args, kwargs, made))
        return made

    def undo(self) -> None:
        with torch.no_grad():
            for value, before in self._before.values():
                value.copy_(before)


class _Stream:
    def __init__(self, device: Any = None) -> None:
        pass

    def wait_stream(self, other: _Stream) -> None:
        assert isinstance(other, _Stream)


@contextlib.contextmanager
def _recording(graph: Graph, pool: Any = None) -> Iterator[None]:
    recorder, dice = _Recorder(graph), torch.get_rng_state()
    try:
        with recorder:
            yield
    finally:
        recorder.undo()
        torch.set_rng_state(dice)


def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs and streams as above, where torch.cuda's are asked for. Tensors stay on the CPU."""
    here = _Stream()
    for name, value in {
        "CUDAGraph": Graph,
        "graph": _recording,
        "graph_pool_handle": lambda: (0, 1),
        "Stream": _Stream,
        "stream": lambda aside: contextlib.nullcontext(),
        "current_stream": lambda device=None: here,
        "synchronize": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(Tensor, "record_stream", lambda self, stream: None)
