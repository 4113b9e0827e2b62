"""What one client did, as far as it is disclosed: enough to run its training again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedleak.attacks.inversion.victims import count_of
from fedleak.attacks.knowledge import known
from fedleak.errors import RefusedError
from fedleak.learning.sgd import momentum_gain
from fedleak.learning.updates import apparent_gradient
from fedleak.types import Message, Round, Setup

__all__ = ["Task", "task_of"]


MOST = 10_000_000
"""Pictures that a client may have gone over: beyond, a number was mistyped, and nothing here ends or fits a memory."""


@dataclass(frozen=True, eq=False)
class Task:
    """What one client did: `samples` examples, `epochs` passes in batches of `batch_size`; SGD at `lr`.

    `update` is (broadcast - sent) / `step`, the sum of the gradients of all steps (the paper divides by their number);
    with momentum earlier ones count more in it, and on average they count once.
    """

    at: int
    message: Message
    samples: int
    batch_size: int
    epochs: int
    lr: float
    update: dict[str, Tensor]
    momentum: float = 0.0

    @property
    def batches(self) -> int:
        """Batches in an epoch; the last one holds what is left over."""
        return -(-self.samples // self.batch_size)

    @property
    def steps(self) -> int:
        return self.epochs * self.batches

    @property
    def step(self) -> float:
        """How far a gradient of its length moves the weights by the end, on average over the steps."""
        return self.lr * momentum_gain(self.momentum, self.steps)

    @property
    def said(self) -> str:
        """How the client trained, in the words in which it is disclosed."""
        momentum = f", momentum={self.momentum:g}" if self.momentum else ""
        return f"lr={self.lr:g}{momentum} (samples={self.samples}, batch_size={self.batch_size}, epochs={self.epochs})"

    @property
    def shape(self) -> tuple[int, int, int, float]:
        """Clients that agree in it are searched as one batch."""
        return self.samples, self.batch_size, self.epochs, self.lr


def task_of(setup: Setup, round_: Round, at: int) -> Task:
    """What the message at this position stands for, or RefusedError where what is disclosed cannot be right."""
    message = round_.received[at]
    told = known(setup, message)
    samples = count_of(setup, message, "samples")
    epochs = _whole(message, told, "epochs", "local training has at least one epoch")
    if samples * epochs > MOST:
        raise RefusedError(
            f"{message.sender}: samples={samples}, epochs={epochs}: their product must be at most {MOST:,} pictures; "
            "correct what is disclosed"
        )
    size = told.get("batch_size")
    size = samples if size is None else _whole(message, told, "batch_size", "a batch has at least one example")
    lr = told.get("lr")
    if isinstance(lr, bool) or not isinstance(lr, int | float) or not math.isfinite(lr) or lr <= 0:
        raise RefusedError(f"{message.sender}: lr={lr!r}: must be a finite number above 0")
    momentum = told.get("momentum", 0.0)
    if isinstance(momentum, bool) or not isinstance(momentum, int | float) or not 0 <= momentum < 1:
        raise RefusedError(f"{message.sender}: momentum={momentum!r}: must be a number from 0 up and below 1")
    task = Task(at, message, samples, min(size, samples), epochs, float(lr), {}, float(momentum))
    update = {name: value / task.step for name, value in apparent_gradient(round_, message).items()}
    if not all(bool(value.isfinite().all()) for value in update.values()):
        raise RefusedError(f"{message.sender}: lr={lr!r}: the update divided by it is not finite")
    return replace(task, update=update)


def _whole(message: Message, told: Mapping[str, Any], name: str, rule: str) -> int:
    value = told.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RefusedError(f"{message.sender}: {name}={value!r}: {rule}; disclose a whole number from 1 up")
    return value
