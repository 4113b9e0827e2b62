"""Whether an error means that a device has no memory left."""

from __future__ import annotations

import torch

__all__ = ["ran_out_of_memory"]


def ran_out_of_memory(error: BaseException) -> bool:
    """torch has a class of its own for what its allocator cannot get. What CUDA's libraries ask the driver for (a
    workspace, a graph) fails with a plain error that only says so, as it does where several processes fill a device.

    >>> ran_out_of_memory(RuntimeError("CUDA error: out of memory"))
    True
    """
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "out of memory" in str(error)
    )
