"""Which examples go into which step: index batches for one epoch and for many.

The last batch of an epoch holds what is left over, and no batch ever runs into the next epoch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedleak.errors import RefusedError

__all__ = ["epoch_batches", "schedule"]


def epoch_batches(count: int, batch_size: int | None = None, rng: torch.Generator | None = None) -> tuple[Tensor, ...]:
    """One pass over `count` examples in batches of `batch_size` (None: all at once).

    With `rng` the order is drawn from it; without, it is the order of the examples.

    >>> [batch.tolist() for batch in epoch_batches(5, 2)]
    [[0, 1], [2, 3], [4]]
    """
    if count < 1:
        raise RefusedError(f"examples={count}: an epoch needs at least one example")
    if batch_size is not None and batch_size < 1:
        raise RefusedError(f"batch_size={batch_size}: must be at least 1, or None for all examples at once")
    order = torch.arange(count) if rng is None else torch.randperm(count, generator=rng)
    return torch.split(order, count if batch_size is None else batch_size)


def schedule(
    count: int, batch_size: int | None, epochs: int, rng: torch.Generator | None = None
) -> tuple[tuple[Tensor, ...], ...]:
    """The batches of every epoch. With `rng` each epoch, the first included, has its own order."""
    if epochs < 1:
        raise RefusedError(f"epochs={epochs}: local training needs at least one epoch")
    return tuple(epoch_batches(count, batch_size, rng) for _ in range(epochs))
