"""The one place that turns what a client sent into an apparent gradient.

An apparent gradient points the way that a gradient does: gradients are taken as sent, weights as what was broadcast
minus what came back (dlm.txt, eq. 1). Its scale is that of the update; nothing here knows a learning rate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedleak.errors import RefusedError
from fedleak.types import Gradients, Message, Named, Round, Weights

__all__ = ["apparent_gradient"]


def apparent_gradient(round: Round, message: Message) -> dict[str, Tensor]:
    """The apparent gradient of one message, tensor by tensor in the order of the broadcast weights.

    Raises RefusedError where there is none: no broadcast weights to compare with, other names or shapes than were
    broadcast, whole numbers (a quantised update that does not say its scale), numbers that are not finite, or an update
    of zeros only.
    """
    where = f"round {round.index}, {message.sender}"
    broadcast = round.broadcast
    if not isinstance(broadcast, Weights) or not broadcast.tensors:
        raise RefusedError(f"{where}: the round has no broadcast weights, and an update means nothing without them")
    payload = message.payload
    if not isinstance(payload, Gradients | Weights):
        raise RefusedError(f"{where}: sent {type(payload).__name__.lower()}, which are not an update of the weights")
    _check(where, broadcast.tensors, payload.tensors)
    update = {
        name: payload.tensors[name] if isinstance(payload, Gradients) else sent_from - payload.tensors[name]
        for name, sent_from in broadcast.tensors.items()
    }
    if not any(bool(torch.any(value != 0)) for value in update.values()):
        raise RefusedError(f"{where}: the update is zero everywhere: the client sent nothing new")
    return update


def _check(where: str, broadcast: Named, sent: Named) -> None:
    if set(broadcast) != set(sent):
        missing, extra = sorted(set(broadcast) - set(sent)), sorted(set(sent) - set(broadcast))
        raise RefusedError(
            f"{where}: sent other tensors than were broadcast (missing: {', '.join(missing) or 'none'}; "
            f"not expected: {', '.join(extra) or 'none'})"
        )
    for name, value in broadcast.items():
        if sent[name].shape != value.shape:
            raise RefusedError(f"{where}: {name} was sent as {tuple(sent[name].shape)}, expected {tuple(value.shape)}")
        if not sent[name].is_floating_point():
            raise RefusedError(
                f"{where}: {name} was sent as {str(sent[name].dtype).removeprefix('torch.')}: a quantised update, and "
                "no usable scale is disclosed with it; disclose quantisation={'scale': ..., 'zero_point': ...} for the "
                "message, or record it decoded"
            )
        if not bool(torch.isfinite(value).all()):
            raise RefusedError(f"{where}: the broadcast {name} holds numbers that are not finite")
        if not bool(torch.isfinite(sent[name]).all()):
            raise RefusedError(f"{where}: the {name} it sent holds numbers that are not finite")
