"""The numbers inside a message, seen as what the client changed: the one place defenses take payloads apart.

The update is the gradient itself (FedSGD), the sent minus the broadcast weights (FedAvg) or the predictions (FedMD).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from fedleak.defenses.base import Context
from fedleak.errors import RefusedError, ShapeError
from fedleak.types import Named, Payload, Predictions, Weights

__all__ = ["global_norm", "map_numbers", "map_update", "sent_numbers", "update_of", "with_numbers"]

_VALUES = "values"


def sent_numbers(payload: Payload) -> dict[str, Tensor]:
    """The numbers as they cross the wire."""
    return {_VALUES: payload.values} if isinstance(payload, Predictions) else dict(payload.tensors)


def with_numbers(payload: Payload, numbers: Named) -> Payload:
    """The same payload with other numbers."""
    for name, old in sent_numbers(payload).items():
        if numbers[name].shape != old.shape:
            raise ShapeError(f"{name}: a defense turned shape {tuple(old.shape)} into {tuple(numbers[name].shape)}")
    if isinstance(payload, Predictions):
        return replace(payload, values=numbers[_VALUES])
    return cast(Payload, replace(payload, tensors=dict(numbers)))


def _origin(payload: Payload, context: Context) -> Named | None:
    if not isinstance(payload, Weights):
        return None
    if context.broadcast is None:
        raise RefusedError("context.broadcast=None: the update in sent weights is sent - broadcast; give the broadcast")
    return context.broadcast.tensors


def update_of(payload: Payload, context: Context) -> dict[str, Tensor]:
    """What the client changed."""
    origin, sent = _origin(payload, context), sent_numbers(payload)
    return sent if origin is None else {name: value - origin[name] for name, value in sent.items()}


def map_update(payload: Payload, context: Context, change: Callable[[dict[str, Tensor]], Named]) -> Payload:
    """The payload whose update went through `change`; weights get the broadcast added back."""
    origin = _origin(payload, context)
    changed = change(update_of(payload, context))
    return with_numbers(
        payload, changed if origin is None else {name: origin[name] + value for name, value in changed.items()}
    )


def map_numbers(payload: Payload, change: Callable[[dict[str, Tensor]], Named]) -> Payload:
    """The payload whose numbers, as sent, went through `change`."""
    return with_numbers(payload, change(sent_numbers(payload)))


def global_norm(numbers: Named) -> float:
    """The L2 norm of all numbers together, summed in float64: float32 loses digits over a whole network."""
    return math.sqrt(sum(float(value.detach().to(torch.float64).square().sum()) for value in numbers.values()))
