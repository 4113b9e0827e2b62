"""What work takes of a device's memory, and whether an error means that none is left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["Saved", "ran_out_of_memory", "saved_by_autograd"]


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
    """torch has a class of its own for what its allocator cannot get. What CUDA's libraries ask the driver for (a
    workspace, a graph) fails with a plain error that only says so, as it does where several processes fill a device.

    >>> ran_out_of_memory(RuntimeError("CUDA error: out of memory"))
    True
    """
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "out of memory" in str(error)
    )
