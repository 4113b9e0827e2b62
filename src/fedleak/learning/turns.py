"""Which networks of a stack take a step together, on what rows, and with what randomness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["gathered", "lent", "lined_up"]


def lined_up(sizes: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Which networks take their next step together, given the sizes of each one's batches in order.

    A group has batches of one size. Networks wait where that lets more of them go together: those whose next batch is
    not of the most common size go first, alone.

    >>> list(lined_up([[4, 1, 4], [4, 4, 4]]))
    [[0, 1], [0], [0, 1], [1]]
    """
    counts = Counter(size for own in sizes for size in own)
    common = max(counts, key=lambda size: (counts[size], size), default=0)
    at = [0] * len(sizes)
    while waiting := [k for k, own in enumerate(sizes) if at[k] < len(own)]:
        following = {k: sizes[k][at[k]] for k in waiting}
        alike = len(set(following.values())) == 1
        for group in [waiting] if alike else [[k] for k in waiting if following[k] != common]:
            yield group
            for k in group:
                at[k] += 1


def gathered(data: Sequence[Tensor], group: Sequence[int], picked: Sequence[Tensor]) -> list[Tensor]:
    """The rows `picked` of the data of each network of the group; in one go where they share it and alike."""
    if len(group) > 1 and all(data[k] is data[group[0]] for k in group):
        rows = data[group[0]].index_select(0, torch.cat(list(picked)))
        return list(rows.reshape(len(group), -1, *rows.shape[1:]))
    return [data[k].index_select(0, index) for k, index in zip(group, picked, strict=True)]


@contextmanager
def lent(rng: torch.Generator | None, device: torch.device) -> Iterator[None]:
    """Dropout draws from torch's global generator: lend it a seeded one and give it back."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int(torch.randint(0, 2**62, (1,), generator=rng)) if rng is not None else 0)
        yield
