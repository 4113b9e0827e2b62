"""Whether a network fits the pictures and classes of a federation: asked with one picture before any training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedleak.errors import ShapeError
from fedleak.learning.memory import ran_out_of_memory

__all__ = ["check_network"]


def check_network(who: str, ask: Callable[[], Tensor], shape: tuple[int, ...], classes: int, most: int | None) -> None:
    """Refuses a network that `ask` gets no answer from for a picture of `shape`, or none of at least `classes` and at
    most `most` numbers (None: as many as it likes)."""
    try:
        # A module of somebody's own may draw (functional dropout), also in eval mode.
        with torch.random.fork_rng(devices=[]):
            made = tuple(ask().shape[1:])
    except (RuntimeError, ValueError, IndexError) as problem:
        if ran_out_of_memory(problem):
            raise
        said = str(problem).partition("\n")[0]
        raise ShapeError(
            f"{who} does not take pictures of {shape} ({said}); build it for these, or give pictures of the size and "
            "the channels that it takes (data.size, data.grey, data.colour)"
        ) from problem
    if len(made) != 1 or made[0] < classes or (most is not None and made[0] > most):
        raise ShapeError(
            f"{who} gives {made} numbers for an image, but there are {classes} classes; "
            f"build it with {classes} outputs, or say how many classes there are (classes=...)"
        )
