"""Do the disclosed values fit the update? What softmax and cross-entropy let the last layer's bias do.

The gradient of a class's bias is, in every step, the mean probability of the class less its share of the batch. Both
are shares, so that U steps cannot move the biases by more than U times the learning rate in all; and where the counts
are told, no class's bias can rise by more than the examples of that class push it. Values that break this are wrong, or
the client did something else than plain SGD: momentum, a defense that adds noise.

A learning rate that is too large breaks neither rule: such an update is only smaller than it might be. That shows after
the search, where the simulated training ends far beyond the client's. What nothing shows is a wrong number of samples
that some other examples would have led to the same weights.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedleak.attacks.inversion.head import Head, find_head
from fedleak.attacks.inversion.victims import network_of
from fedleak.attacks.simulation.tasks import Task
from fedleak.types import Setup, Weights

__all__ = ["SEARCHED", "contradiction", "head_of", "unreached"]

ENOUGH = 16
"""Pictures of noise to find the last layer with."""
FAR = 4.0
"""How many times as long as the client's a simulated update may be, or the other way round.

Chosen on one recording of three clients (MNIST, E = 3, m = 4, 10 images; strong and released, 40 steps): 0.5 to 1.2
with the right learning rate (noise for pictures: 2.4 to 3.6), 4.2 to 9.6 with ten times of it, 0.11 to 0.17 with a
tenth. Told 40 or 3 samples in place of 10 it was 0.5 to 1.6: that is not seen."""
SEARCHED = 40
"""Steps of a search after which the length of its update says something (`FAR` was chosen after so many)."""
SLACK = 1e-3
"""Of a step: rounding of weights in float32 stays far below."""


def head_of(setup: Setup, broadcast: Weights, rng: torch.Generator) -> Head | None:
    """The last layer, or None: then nothing is checked, and whoever needs it says so."""
    like = next(iter(broadcast.tensors.values()))
    try:
        noise = torch.randn(ENOUGH, *setup.input_shape, generator=rng).to(like)
        return find_head(network_of(setup, broadcast), broadcast.tensors, broadcast.buffers, noise, setup.classes)
    except Exception:  # a user's module may raise anything
        return None


def contradiction(setup: Setup, task: Task, head: Head | None, labels: Tensor | None = None) -> str:
    """In words, what the update contradicts; "" where it may be. `labels` (samples,) where they are told."""
    if head is None or head.bias is None or setup.loss != "cross_entropy":
        return ""
    pull = task.update[head.bias].detach().double().cpu()
    rose, fell = float(-pull.clamp(max=0).sum()), float(pull.clamp(min=0).sum())
    steps, most = task.steps, max(rose, fell)
    if most > steps * (1 + SLACK):
        return _words(task, f"move the last layer's biases up or down by at most {steps * task.step:.3g} in all", most)
    if labels is None or task.momentum:  # with momentum a class counts for more where it comes early
        return ""
    counts = torch.bincount(labels, minlength=setup.classes).tolist()
    beyond = [-value - _push(task, count) for value, count in zip(pull.tolist(), counts, strict=True)]
    worst = max(range(setup.classes), key=beyond.__getitem__)
    if beyond[worst] <= SLACK * steps:
        return ""
    held = f"class {worst}, of which there are {counts[worst]} among {task.samples}"
    limit = _push(task, counts[worst]) * task.lr
    return _words(task, f"raise the last layer's bias of {held}, by at most {limit:.3g}", -float(pull[worst]))


def unreached(task: Task, reach: float) -> str:
    """In words, that the simulated update ended `reach` times as long as the client's; "" where that may be."""
    if not math.isfinite(reach) or reach <= 0 or 1 / FAR <= reach <= FAR:
        return ""
    return (
        f"disclosed values do not fit the update: {task.steps} simulated steps at {task.said} moved the weights "
        f"{reach:.2g} times as far as the client did, and within a factor of {FAR:g} is expected; correct what is "
        f"disclosed, take more steps, or expect {'' if task.momentum else 'momentum or '}a defense"
    )


def _push(task: Task, count: int) -> float:
    """The largest sum, over the steps, of a class's share of the batch: its examples in the smallest batches."""
    last = task.samples - (task.batches - 1) * task.batch_size
    return task.epochs * (min(count, last) / last + max(count - last, 0) / task.batch_size)


def _words(task: Task, rule: str, found: float) -> str:
    return (
        f"disclosed values contradict the update: {task.steps} steps at {task.said} {rule}, and the update has "
        f"{found * task.step:.3g}; correct what is disclosed, or expect {'' if task.momentum else 'momentum or '}a "
        "defense that adds noise"
    )
