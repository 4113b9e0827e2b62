"""From the chosen attempts to one trace: objective per step and pictures on the way."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedleak.attacks.inversion.dummies import Dummies
from fedleak.attacks.inversion.search import Attempt
from fedleak.types import Setup, Trace

__all__ = ["candidate_steps", "trace_of"]


def candidate_steps(steps: int) -> frozenset[int]:
    """Steps at which points are kept: 0, then log-spaced, dense enough to choose from once the length is known."""
    chosen, step = {0}, 1.0
    while step <= steps:
        chosen.add(round(step))
        step *= 1.25
    return frozenset(chosen)


def trace_of(setup: Setup, best: Sequence[tuple[Dummies, Attempt] | None], snapshots: int) -> Trace:
    """The trace of all victims over common steps. A victim that ended early stays where it ended; one that was refused
    has no objective (nan) and no pictures."""
    longest = max((attempt.steps for _, attempt in filter(None, best)), default=0)
    if longest == 0:
        return Trace()
    objective = torch.full((len(best), longest + 1), float("nan"))
    for at, one in enumerate(best):
        if one is not None:
            values = torch.tensor([*one[1].trace, one[1].best])
            objective[at, : len(values)], objective[at, len(values) :] = values, values[-1]
    shown = _spread(sorted(step for step in candidate_steps(longest) if step < longest), longest, snapshots)
    pictures = tuple(_pictures(setup, one, shown) for one in best) if shown else ()
    return Trace(tuple(range(longest + 1)), objective, shown, pictures)


def _spread(candidates: Sequence[int], last: int, count: int) -> tuple[int, ...]:
    """`count` steps spread evenly over the candidates, the first and the last step among them."""
    if count < 2:
        return (last,) if count == 1 else ()
    if len(candidates) < count:
        return (*candidates, last)
    places = [round(at * (len(candidates) - 1) / (count - 1)) for at in range(count - 1)]
    return (*[candidates[place] for place in places], last)


def _pictures(setup: Setup, one: tuple[Dummies, Attempt] | None, steps: Sequence[int]) -> Tensor:
    if one is None:
        return torch.zeros(len(steps), 0, *setup.input_shape)
    dummies, attempt = one
    assert attempt.point is not None
    points = torch.stack([attempt.snapshots.get(step, attempt.point) for step in steps])
    return setup.normalisation.undo(dummies.inputs(points))
