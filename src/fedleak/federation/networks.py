"""Whether a network fits the pictures and classes of a federation: asked with one picture before any training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedleak.errors import FedleakError, ShapeError
from fedleak.factories import raised
from fedleak.learning.memory import ran_out_of_memory

__all__ = ["check_network"]


def check_network(who: str, ask: Callable[[], Tensor], shape: tuple[int, ...], classes: int, most: int | None) -> int:
    """How many numbers a network gives for a picture of `shape`. Refused is one that `ask` gets no answer from, or none
    of at least `classes` and at most `most` numbers (None: as many as it likes)."""
    try:
        # A module of somebody's own may draw (functional dropout), also in eval mode.
        with torch.random.fork_rng(devices=[]):
            made = tuple(ask().shape[1:])
    except Exception as problem:  # whatever a network of somebody's own raises
        if isinstance(problem, FedleakError) or ran_out_of_memory(problem):
            raise
        torchs = isinstance(problem, RuntimeError | ValueError | IndexError)
        said = str(problem).partition("\n")[0] if torchs else raised(problem)
        raise ShapeError(
            f"{who} does not take pictures of {shape} ({said}); build it for these, or give pictures of the size and "
            "the channels that it takes (data.size, data.grey, data.colour)"
        ) from problem
    if len(made) != 1 or made[0] < classes or (most is not None and made[0] > most):
        raise ShapeError(
            f"{who} gives {made} numbers for an image, but there are {classes} classes; "
            f"build it with {classes} outputs, or say how many classes there are (classes=...)"
        )
    return int(made[0])
