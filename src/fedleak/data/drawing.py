"""Choosing examples: by label, a share or a number of every class, a number of all. Nothing here makes pixels."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["UNWANTED", "at_most", "most_of_each", "renumbered", "share_of_each"]

UNWANTED = -1
"""The label of an example that is not taken part of."""


def renumbered(labels: Tensor, wanted: tuple[int, ...] | None) -> Tensor:
    """The labels counted from 0 in the order of `wanted`; UNWANTED where a label is not among them."""
    if wanted is None:
        return labels
    numbers = torch.full((max(int(labels.max()), *wanted) + 1,), UNWANTED)
    numbers[list(wanted)] = torch.arange(len(wanted))
    return numbers[labels]


def share_of_each(labels: Tensor, share: float, rng: torch.Generator) -> Tensor:
    """True for a random `share` of every class; a class of two or more keeps one example on either side."""
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    for members in _by_class(labels):
        count = min(max(int(share * len(members) + 0.5), 1), len(members) - 1)
        chosen[members[torch.randperm(len(members), generator=rng)[:count]]] = True
    return chosen


def most_of_each(labels: Tensor, most: int | None, rng: torch.Generator) -> Tensor:
    """True for at most `most` random examples of every class; None: for all."""
    if most is None:
        return torch.ones(len(labels), dtype=torch.bool)
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    for members in _by_class(labels):
        chosen[members[torch.randperm(len(members), generator=rng)[:most]]] = True
    return chosen


def at_most(index: Tensor, most: int | None, rng: torch.Generator) -> Tensor:
    """At most `most` random ones, in the order they had. Fewer of them are always among more of them."""
    if most is None or len(index) <= most:
        return index
    return index[torch.randperm(len(index), generator=rng)[:most].sort().values]


def _by_class(labels: Tensor) -> list[Tensor]:
    """The positions of every class, the classes in the order of their labels."""
    return [torch.nonzero(labels == kind).flatten() for kind in torch.unique(labels)]
