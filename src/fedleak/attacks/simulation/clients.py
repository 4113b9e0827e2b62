"""Whose training is run again: for every message what it takes to do so, checked against each other.

A message whose disclosed values are wrong, or contradict each other, is refused with the rule; the others go on. Where
they contradict the update itself the victim is attacked and marked: noise from a defense can do the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedleak.attacks.inversion.head import Head
from fedleak.attacks.inversion.victims import count_of
from fedleak.attacks.knowledge import known
from fedleak.attacks.simulation.counts import LabelEstimator, labels_of
from fedleak.errors import RefusedError
from fedleak.learning.updates import apparent_gradient
from fedleak.seeding import Seeds
from fedleak.types import Message, Round, Setup, Weights

__all__ = ["Client", "LabelOrder", "LabelSource", "Task", "clients_of", "task_of"]

LabelSource = Literal["interpolated", "geng_server", "geng_client", "known", "known_batches"]
"""How an attack comes by the labels: read off the update, or told their counts, or told those of every batch."""

LabelOrder = Literal["random", "sorted"]
"""How labels go to batches where that is not known: the paper and its code differ (facts: end to end, table 3)."""


@dataclass(frozen=True, eq=False)
class Task:
    """What one client did: `samples` examples, `epochs` passes in batches of `batch_size`; plain SGD at `lr`.

    `update` is (broadcast - sent) / lr, the sum of the gradients of all steps (the paper divides by their number).
    """

    at: int
    message: Message
    samples: int
    batch_size: int
    epochs: int
    lr: float
    update: dict[str, Tensor]

    @property
    def batches(self) -> int:
        """Batches in an epoch; the last one holds what is left over."""
        return -(-self.samples // self.batch_size)

    @property
    def steps(self) -> int:
        return self.epochs * self.batches

    @property
    def shape(self) -> tuple[int, int, int, float]:
        """Clients that agree in it are searched as one batch."""
        return self.samples, self.batch_size, self.epochs, self.lr


@dataclass(frozen=True, eq=False)
class Client:
    """A task and the labels of its examples, (epochs, samples), in the order in which the simulation uses them."""

    task: Task
    labels: Tensor
    remark: str = ""


def task_of(setup: Setup, round_: Round, at: int) -> Task:
    """What the message at this position stands for, or RefusedError where what is disclosed cannot be right."""
    message = round_.received[at]
    told = known(setup, message)
    samples = count_of(setup, message, "samples")
    epochs = _whole(message, told, "epochs", "local training has at least one epoch")
    size = told.get("batch_size")
    size = samples if size is None else _whole(message, told, "batch_size", "a batch has at least one example")
    lr = told.get("lr")
    if isinstance(lr, bool) or not isinstance(lr, int | float) or not math.isfinite(lr) or lr <= 0:
        raise RefusedError(f"{message.sender}: lr={lr!r}: must be a finite number above 0")
    update = {name: value / lr for name, value in apparent_gradient(round_, message).items()}
    if not all(bool(value.isfinite().all()) for value in update.values()):
        raise RefusedError(f"{message.sender}: lr={lr!r}: the update divided by it is not finite")
    return Task(at, message, samples, min(size, samples), epochs, float(lr), update)


def clients_of(
    setup: Setup,
    round_: Round,
    source: LabelSource,
    order: LabelOrder,
    seeds: Seeds,
    estimator: Callable[[], LabelEstimator],
) -> tuple[list[Client], dict[int, str]]:
    """The clients of a round, and for every message that cannot be attacked, by position, the reason.

    The split of the labels into batches depends on the seed and the sender alone: it is the same for every method.
    """
    clients: list[Client] = []
    refused: dict[int, str] = {}
    for at, message in enumerate(round_.received):
        try:
            task = task_of(setup, round_, at)
            remark = ""
            if source == "interpolated" or source == "geng_server" or source == "geng_client":
                measured = estimator()
                assert isinstance(message.payload, Weights)  # `require` refuses every other payload
                counts = measured.counts(message.payload, task.update, task.samples, task.steps, source)
                remark = _contradiction(task, measured.head)
                labels = _split(labels_of(counts.tolist()), task, order, seeds)
            elif source == "known":
                labels = _split(labels_of(_told_counts(setup, task)), task, order, seeds)
            else:
                labels = _told_batches(setup, task)
            clients.append(Client(task, labels, remark))
        except RefusedError as reason:
            refused[at] = str(reason)
    return clients, refused


def _split(labels: Tensor, task: Task, order: LabelOrder, seeds: Seeds) -> Tensor:
    """One split for all epochs (section 4.3)."""
    if order == "random":
        labels = labels[torch.randperm(len(labels), generator=seeds.generator("split", task.message.sender))]
    return labels.expand(task.epochs, -1)


def _whole(message: Message, told: Mapping[str, Any], name: str, rule: str) -> int:
    value = told.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RefusedError(f"{message.sender}: {name}={value!r}: {rule}; disclose a whole number from 1 up")
    return value


def _told_counts(setup: Setup, task: Task) -> list[int]:
    who, counts = task.message.sender, known(setup, task.message).get("label_counts")
    if not isinstance(counts, Sequence) or isinstance(counts, str) or not all(_is_count(one) for one in counts):
        raise RefusedError(f"{who}: label_counts={counts!r}: must be one whole number, 0 or more, for every class")
    if len(counts) != setup.classes:
        raise RefusedError(
            f"{who}: label_counts has {len(counts)} entries, and the network has {setup.classes} classes"
        )
    if sum(counts) != task.samples:
        raise RefusedError(
            f"{who}: label_counts sum to {sum(counts)}, but samples={task.samples}; disclose values that agree"
        )
    return list(counts)


def _told_batches(setup: Setup, task: Task) -> Tensor:
    """The labels of every batch of every epoch, (epochs, samples)."""
    who, batches = task.message.sender, known(setup, task.message).get("batch_labels")
    last = task.samples - (task.batches - 1) * task.batch_size
    sizes = ([task.batch_size] * (task.batches - 1) + [last]) * task.epochs
    if not isinstance(batches, Sequence) or [_length(one) for one in batches] != sizes:
        raise RefusedError(
            f"{who}: batch_labels must hold {len(sizes)} batches, of {task.batch_size} labels and the last of every "
            f"epoch of {last}: that is what samples={task.samples}, batch_size={task.batch_size} and "
            f"epochs={task.epochs} say"
        )
    flat = [label for batch in batches for label in batch]
    if not all(_is_count(one) and one < setup.classes for one in flat):
        raise RefusedError(f"{who}: batch_labels: a label must be a whole number from 0 to {setup.classes - 1}")
    return torch.tensor(flat).reshape(task.epochs, task.samples)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _length(value: Any) -> int:
    return len(value) if isinstance(value, Sequence) and not isinstance(value, str) else -1


def _contradiction(task: Task, head: Head) -> str:
    """No gradient of a class's bias exceeds 1 for softmax and cross-entropy, so U steps cannot move it by more than
    U times the learning rate."""
    if head.bias is None:
        return ""
    moved = float(task.update[head.bias].abs().max())
    if moved <= task.steps * 1.001:
        return ""
    return (
        f"disclosed values contradict the update: {task.steps} steps at lr={task.lr:g} move the last layer's bias by "
        f"at most {task.steps * task.lr:.3g}, and it moved by {moved * task.lr:.3g}; check lr, samples, batch_size, "
        "epochs, or expect a defense that adds noise"
    )
