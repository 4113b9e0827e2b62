"""How dummies go through the simulated training: which method runs which steps on which of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedleak.attacks.simulation.settings import Method
from fedleak.attacks.simulation.tasks import Task

__all__ = ["Layout", "layout_of"]


@dataclass(frozen=True)
class Layout:
    """`epochs` simulated passes over `samples` dummies in batches of `size`, at the step length `lr`.

    `sets` is how many sets of dummies there are: one for each epoch, or one for all. The simulated update over its own
    step length, times `scale`, is what the client's gradients summed over its steps are compared with. `dummy_batches`
    is the k that the authors divide the distance by, in batches of the client, whatever the simulation does.
    """

    samples: int
    size: int
    epochs: int
    sets: int
    lr: float
    scale: float
    dummy_batches: int

    @property
    def batches(self) -> int:
        return -(-self.samples // self.size)

    @property
    def padding(self) -> int:
        """Places in the last batch of an epoch that no dummy takes."""
        return self.batches * self.size - self.samples

    def pack(self, inputs: Tensor) -> Tensor:
        """Dummies (rows, sets, samples, ...) to the steps' batches (rows, steps, size, ...)."""
        rows, rest = len(inputs), inputs.shape[3:]
        each = inputs.expand(rows, self.epochs, self.samples, *rest)
        if self.padding:
            each = torch.cat([each, each.new_zeros(rows, self.epochs, self.padding, *rest)], dim=2)
        return each.reshape(rows, self.epochs * self.batches, self.size, *rest)

    def unpack(self, slopes: Tensor) -> Tensor:
        """What `pack` does to dummies, backwards: slopes of the batches to slopes of the dummies."""
        rows, rest = len(slopes), slopes.shape[3:]
        each = slopes.reshape(rows, self.epochs, self.batches * self.size, *rest)[:, :, : self.samples]
        return each.sum(dim=1, keepdim=True) if self.sets < self.epochs else each

    def labels(self, labels: Tensor) -> Tensor:
        """Labels (rows, epochs, samples) to the steps' batches; with one set of dummies its labels never change."""
        return self.pack(labels[:, : self.sets])

    def mask(self, rows: int, like: Tensor) -> Tensor | None:
        """1 for a dummy, 0 for padding; None where every batch is full."""
        if not self.padding:
            return None
        return self.pack(torch.ones(rows, self.sets, self.samples, dtype=like.dtype, device=like.device))


def layout_of(task: Task, method: Method, epoch_dummies: Literal["shared", "separate"] = "shared") -> Layout:
    """The layout of one method for a client. Over one epoch the first three are the same, and so are the last two."""
    all_steps = float(task.steps)
    if method in ("prior", "no_prior"):
        return Layout(task.samples, task.batch_size, task.epochs, task.epochs, task.lr, 1.0, task.steps)
    if method == "shared":
        return Layout(task.samples, task.batch_size, task.epochs, 1, task.lr, 1.0, task.batches)
    if method == "fedsgd":
        return Layout(task.samples, task.samples, 1, 1, task.lr * all_steps, all_steps, task.batches)
    sets = task.epochs if epoch_dummies == "separate" else 1
    times = float(task.batches)
    return Layout(task.samples, task.samples, task.epochs, sets, task.lr * times, times, sets * task.batches)
