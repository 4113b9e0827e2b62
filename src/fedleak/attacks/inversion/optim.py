"""What an optimiser over a batch of independent problems is.

A problem is one row: points are (b, size), values (b,), slopes (b, size). Nothing couples two rows, so a row may be
dropped, reset or added between two advances without the others noticing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

__all__ = ["Evaluate", "Outcome", "RowOptimiser", "RowState"]

Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(points (k, size), rows (k,)) to (values (k,), slopes (k, size)); `rows` says which rows of the batch these are."""


class RowState(Protocol):
    """What an optimiser remembers about every row."""

    def take(self, rows: Tensor) -> RowState:
        """The state of these rows only, in this order."""
        ...

    def forget(self, rows: Tensor) -> None:
        """Make these rows as if they had just begun."""
        ...


S = TypeVar("S", bound=RowState)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one advance did to every row.

    `values` is the objective where the advance began, `evaluations` how often a row that could still move was
    evaluated. `finished` rows will never move again (a tolerance was met);
    `broken` rows met a value or slope that is not finite, and stand where they met it.
    """

    points: Tensor
    values: Tensor
    finished: Tensor
    broken: Tensor
    evaluations: Tensor


class RowOptimiser(Protocol[S]):
    """Moves every row of a batch by one outer iteration."""

    def begin(self, points: Tensor) -> S: ...

    def advance(self, points: Tensor, state: S, evaluate: Evaluate) -> Outcome: ...
