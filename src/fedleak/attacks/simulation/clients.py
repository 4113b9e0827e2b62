"""Whose training is run again: for every message what it takes to do so, checked against each other.

A message whose disclosed values are wrong, or contradict each other, is refused with the rule; the others go on. Where
they contradict the update itself the victim is attacked and marked: noise from a defense can do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from fedleak.attacks.inversion.head import Head
from fedleak.attacks.knowledge import known
from fedleak.attacks.simulation.contradictions import contradiction, head_of
from fedleak.attacks.simulation.counts import LabelEstimator, labels_of
from fedleak.attacks.simulation.tasks import Task, task_of
from fedleak.errors import RefusedError
from fedleak.seeding import Seeds
from fedleak.types import Round, Setup, Weights

__all__ = ["Client", "LabelOrder", "LabelSource", "clients_of"]

LabelSource = Literal["interpolated", "geng_server", "geng_client", "known", "known_batches"]
"""How an attack comes by the labels: read off the update, or told their counts, or told those of every batch."""

LabelOrder = Literal["random", "sorted"]
"""How labels go to batches where that is not known: the paper and its code differ (facts: end to end, table 3)."""


@dataclass(frozen=True, eq=False)
class Client:
    """A task and the labels of its examples, (epochs, samples), in the order in which the simulation uses them."""

    task: Task
    labels: Tensor
    remark: str = ""


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

    @cache
    def head() -> Head | None:
        assert isinstance(round_.broadcast, Weights)  # task_of refuses every client otherwise
        return head_of(setup, round_.broadcast, seeds.generator("head"))

    for at, message in enumerate(round_.received):
        try:
            task = task_of(setup, round_, at)
            if source == "interpolated" or source == "geng_server" or source == "geng_client":
                measured = estimator()
                assert isinstance(message.payload, Weights)  # `require` refuses every other payload
                counts = measured.counts(message.payload, task.update, task.samples, task.steps, source)
                remark = contradiction(setup, task, measured.head)
                labels = _split(labels_of(counts.tolist()), task, order, seeds)
            else:
                if source == "known":
                    labels = _split(labels_of(_told_counts(setup, task)), task, order, seeds)
                else:
                    labels = _told_batches(setup, task)
                remark = contradiction(setup, task, head(), labels[0])
            clients.append(Client(task, labels, remark))
        except RefusedError as reason:
            refused[at] = str(reason)
    return clients, refused


def _split(labels: Tensor, task: Task, order: LabelOrder, seeds: Seeds) -> Tensor:
    """One split for all epochs (section 4.3)."""
    if order == "random":
        labels = labels[torch.randperm(len(labels), generator=seeds.generator("split", task.message.sender))]
    return labels.expand(task.epochs, -1)


def _told_counts(setup: Setup, task: Task) -> list[int]:
    who, counts = task.message.sender, known(setup, task.message).get("label_counts")
    if not isinstance(counts, Sequence) or isinstance(counts, str) or not all(_is_count(one) for one in counts):
        raise RefusedError(f"{who}: label_counts={counts!r}: must be one whole number, 0 or more, for every class")
    if len(counts) != setup.classes:
        raise RefusedError(
            f"{who}: label_counts has {len(counts)} entries, and the network has {setup.classes} classes; "
            "disclose one number for every class"
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
    labels = torch.tensor(flat).reshape(task.epochs, task.samples)
    ordered = labels.sort(dim=1).values
    if not bool((ordered == ordered[0]).all()):
        other = int((ordered != ordered[0]).any(dim=1).nonzero()[0]) + 1
        raise RefusedError(
            f"{who}: batch_labels: epoch {other} has other labels than epoch 1, and every epoch goes over the same "
            "examples; disclose labels that agree"
        )
    return labels


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _length(value: Any) -> int:
    return len(value) if isinstance(value, Sequence) and not isinstance(value, str) else -1
