"""Quantised updates: whole numbers that mean scale * (value - zero_point).

A message says so itself, in what it discloses:

    disclosed = {"quantisation": {"scale": 0.004, "zero_point": 0, "of": "update"}}

`scale` and `zero_point` (0 where it is left out) are a number for all tensors, or by tensor a number or one number per
row of the first axis. `of` says what is quantised: the "weights" (the default) or their "update", which is added to
what was broadcast. Gradients are gradients either way.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedleak.errors import RefusedError
from fedleak.types import Gradients, Message, Named, Payload, Round, Transcript, Weights

__all__ = ["QUANTISATION", "dequantised", "is_quantised"]

QUANTISATION = "quantisation"


def is_quantised(tensors: Named) -> bool:
    """Is any of what is trained a whole number?"""
    return any(not value.is_floating_point() for value in tensors.values())


def dequantised(transcript: Transcript) -> Transcript:
    """The same transcript with every quantised message that says its scale decoded to float32.

    One that does not, or not in this form, stays as it is: an attack refuses it, with the reason.
    """
    return transcript.mapped(
        lambda seen: replace(seen, received=tuple(_decoded(seen, message) for message in seen.received))
    )


def _decoded(seen: Round, message: Message) -> Message:
    payload: Payload = message.payload
    rule = message.disclosed.get(QUANTISATION)
    if (
        not isinstance(payload, Weights | Gradients)
        or not isinstance(rule, Mapping)
        or not is_quantised(payload.tensors)
    ):
        return message
    told = {name: value for name, value in message.disclosed.items() if name != QUANTISATION}
    with contextlib.suppress(RefusedError):
        decoded = {name: _tensor(name, value, rule) for name, value in payload.tensors.items()}
        if isinstance(payload, Weights) and rule.get("of", "weights") == "update":
            decoded = _added(seen, decoded)
        elif rule.get("of", "weights") not in ("weights", "update"):
            raise RefusedError(f"of={rule.get('of')!r}: must be 'weights' or 'update'")
        return Message(message.sender, replace(payload, tensors=decoded), told)
    return message


def _tensor(name: str, value: Tensor, rule: Mapping[str, Any]) -> Tensor:
    if value.is_floating_point():
        return value
    scale, zero = _numbers(name, value, rule.get("scale")), _numbers(name, value, rule.get("zero_point", 0))
    return ((value.double() - zero) * scale).float()


def _numbers(name: str, value: Tensor, given: Any) -> Tensor:
    """A number, or one per row, as a tensor that fits in front of the value's other axes."""
    if isinstance(given, Mapping):
        given = given.get(name)
    each = given if isinstance(given, list) else [given]
    if not each or any(
        isinstance(one, bool) or not isinstance(one, int | float) or not math.isfinite(one) for one in each
    ):
        raise RefusedError(f"{name}: {given!r} is no number")
    if isinstance(given, list) and (value.ndim == 0 or len(each) != value.shape[0]):
        raise RefusedError(f"{name}: {len(each)} numbers for a tensor of shape {tuple(value.shape)}")
    made = torch.tensor(each, dtype=torch.float64, device=value.device)
    return made.reshape(-1, *[1] * max(value.ndim - 1, 0)) if isinstance(given, list) else made.reshape(())


def _added(seen: Round, update: dict[str, Tensor]) -> dict[str, Tensor]:
    start = seen.broadcast.tensors if isinstance(seen.broadcast, Weights) else {}
    if any(name not in start or start[name].shape != value.shape for name, value in update.items()):
        raise RefusedError("an update of other tensors than were broadcast")
    return {name: start[name].float() + value for name, value in update.items()}
