"""Who is attacked: for every message its apparent gradient, the number of images behind it, and their labels.

A victim whose update cannot be used is refused with the reason, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedleak.attacks.inversion.head import Head, find_head
from fedleak.attacks.inversion.labels import RULES
from fedleak.attacks.knowledge import known
from fedleak.errors import RefusedError
from fedleak.learning.functional import Network
from fedleak.learning.own_models import without_dropout
from fedleak.learning.updates import apparent_gradient
from fedleak.models import build_model
from fedleak.types import Gradients, Message, Round, Setup, Transcript, Weights

__all__ = ["Victim", "as_sent", "attacked_round", "count_of", "network_of", "victims_of"]

NOISE = 128
"""Pictures of noise from which the labels' rules learn what the network makes of pictures."""

Scale = Callable[[Setup, Message], float]


@dataclass(frozen=True, eq=False)
class Victim:
    """One message; `labels` (images,) where a rule has read them off the update, else None."""

    at: int
    message: Message
    images: int
    target: tuple[Tensor, ...]
    labels: Tensor | None


def as_sent(setup: Setup, message: Message) -> float:
    """The apparent gradient is matched as it is."""
    return 1.0


def attacked_round(seen: Transcript, first: int, until: int | None) -> Round:
    """The attacked round; with `until`, the messages of that later round against what was broadcast in the first.

    The rounds in between need not have been seen (dlm.txt section 5.3: W^t and W^{t+k}).
    """
    begun = seen.round(first)
    if until is None:
        return begun
    ended = seen.round(until)
    if ended.index <= begun.index:
        raise RefusedError(f"until={until}: must be a later round than the attacked one, round {begun.index}")
    if any(isinstance(message.payload, Gradients) for message in ended.received):
        raise RefusedError(
            f"until={until}: round {ended.index} holds gradients, taken at its own weights; "
            "leave `until` out, or attack a protocol that sends weights"
        )
    return replace(ended, broadcast=begun.broadcast)


def network_of(setup: Setup, broadcast: Weights) -> Network:
    """The network on the broadcast weights' device, or RefusedError where those are not its parameters. What a client
    dropped nobody knows: the network drops nothing, or every look at it would give another answer."""
    device = next(iter(broadcast.tensors.values())).device
    module = without_dropout(build_model(setup.model, setup.input_shape, setup.classes)).to(device)
    shapes = {name: value.shape for name, value in module.named_parameters()}
    if shapes != {name: value.shape for name, value in broadcast.tensors.items()}:
        raise RefusedError(
            f"model={setup.model.name!r}: its parameters are not those that were broadcast, in name or shape; "
            "give the network that the federation trained"
        )
    return Network(module)


def victims_of(
    setup: Setup,
    round_: Round,
    *,
    scale: Scale,
    count: str,
    rule: str,
    rng: torch.Generator,
    times: float = 1.0,
    labels: Mapping[str, Tensor] | None = None,
) -> tuple[list[Victim], dict[int, str]]:
    """The victims of a round, and for every message that is none, by position, the reason.

    `count` names the piece of knowledge that says how many images there are; `labels` are known ones by sender, which
    win over the rule. The target is `times` the scaled apparent gradient.
    """
    victims: list[Victim] = []
    refused: dict[int, str] = {}
    head: Head | None = None
    for at, message in enumerate(round_.received):
        try:
            own = (labels or {}).get(message.sender)
            images = count_of(setup, message, count) if own is None else len(own)
            factor, update = scale(setup, message), apparent_gradient(round_, message)
            if own is None and rule in RULES:
                head = head or _head(setup, round_, rng)
                is_gradient = scale is not as_sent or isinstance(message.payload, Gradients)
                own = RULES[rule](update, head, images, factor if is_gradient else None)
            target = tuple(value * (times * factor) for value in update.values())
            victims.append(Victim(at, message, images, target, own))
        except RefusedError as reason:
            refused[at] = str(reason)
    return victims, refused


def count_of(setup: Setup, message: Message, name: str) -> int:
    """A disclosed number of images, or RefusedError where it is none."""
    value = known(setup, message).get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise RefusedError(f"{message.sender}: {name}={value!r}: must be a whole number of images, at least 1")
    return value


def _head(setup: Setup, round_: Round, rng: torch.Generator) -> Head:
    broadcast = round_.broadcast
    assert isinstance(broadcast, Weights)  # apparent_gradient refuses otherwise
    network = network_of(setup, broadcast)
    noise = setup.normalisation.apply(torch.rand(NOISE, *setup.input_shape, generator=rng))
    like = next(iter(broadcast.tensors.values()))
    try:
        return find_head(network, broadcast.tensors, broadcast.buffers, noise.to(like), setup.classes)
    except RefusedError:
        raise
    except Exception as error:  # a user's module may raise anything
        raise RefusedError(
            f"labels: the network cannot be asked for its last layer ({type(error).__name__}: {error}); "
            "use labels='joint', which does not ask"
        ) from error
