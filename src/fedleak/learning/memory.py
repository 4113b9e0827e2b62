"""What work takes of a device's memory, and whether an error means that none is left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["Saved", "lacking", "ran_out_of_memory", "saved_by_autograd"]

SAYS_SO = ("out of memory", "can't allocate memory")


class Saved:
    """Bytes of the tensors that autograd kept, each storage once."""

    def __init__(self) -> None:
        self._storages: dict[int, int] = {}

    def add(self, value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        self._storages[storage.data_ptr()] = storage.nbytes()
        return value.detach()  # the output of a function that keeps it itself would keep that function alive for ever

    @property
    def total(self) -> int:
        return sum(self._storages.values())


@contextlib.contextmanager
def saved_by_autograd() -> Iterator[Saved]:
    """What autograd keeps inside, for derivatives of any order.

    >>> a = torch.ones(1000, requires_grad=True)
    >>> with saved_by_autograd() as kept:
    ...     b = (a * a).exp().sum()
    >>> kept.total  # a and its exponential, of float32
    8000
    """
    kept = Saved()
    with torch.autograd.graph.saved_tensors_hooks(kept.add, lambda value: value):
        yield kept


def ran_out_of_memory(error: BaseException) -> bool:
    """torch has a class of its own for what its allocator cannot get on a GPU. What CUDA's libraries ask the driver for
    (a workspace, a graph) fails with a plain error that only says so, as it does where several processes fill a device,
    and so does torch's allocator on a CPU. Python and numpy have a MemoryError.

    >>> ran_out_of_memory(RuntimeError("CUDA error: out of memory"))
    True
    >>> ran_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes"))
    True
    """
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in SAYS_SO)
    )


def lacking(error: BaseException) -> str:
    """What such an error says, in one line; Python's own MemoryError may say nothing.

    >>> lacking(MemoryError())
    'MemoryError'
    """
    return next(iter(str(error).splitlines()), type(error).__name__)
