"""Recordings of networks as people write them: BatchNorm, dropout, frozen layers, half precision, secure aggregation.

    seen = prepare(load_transcript("recording"), Net)
    finding = fedleak.attack(seen, "dlm_plus")

An inversion runs the client's step again. It has to run the same step: without dropout, whose masks nobody knows, with
BatchNorm in the mode that the client used, and without gradients for what the client did not train.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedleak.errors import RefusedError
from fedleak.learning.aggregate import weighted_mean
from fedleak.types import Message, Named, Payload, Round, Transcript, Weights

__all__ = ["attackable", "prepare", "summed"]

BatchNorm = Literal["batch", "running"]


def attackable(model: Callable[[], nn.Module], *, batchnorm: BatchNorm = "batch") -> Callable[[], nn.Module]:
    """The same network as an attack can use it.

    Dropout does nothing (also `F.dropout(..., training=self.training)`); BatchNorm uses the statistics of the "batch",
    as in training, or the "running" ones, for clients that fine-tune in eval mode; parameters with
    `requires_grad=False` become buffers; everything is in float32.
    """

    def made() -> nn.Module:
        module = model().eval().float()
        for part in module.modules():
            if batchnorm == "batch" and isinstance(part, _BatchNorm):
                part.train()
            for name, value in list(part.named_parameters(recurse=False)):
                if not value.requires_grad:
                    del part._parameters[name]
                    part.register_buffer(name, value.detach())
        if not any(True for _ in module.parameters()):
            raise RefusedError(f"model={type(module).__name__}: every parameter is frozen, so no update says anything")
        return module

    return made


def prepare(transcript: Transcript, model: Callable[[], nn.Module], *, batchnorm: BatchNorm = "batch") -> Transcript:
    """The transcript for an attack on this network: its names checked, frozen layers among the buffers, in float32.

    Messages that are not weights of this network (another shape, a renamed layer) stay as they are, and the attack
    refuses them one by one with the reason; a broadcast that is not of this network is refused here.
    """
    made = attackable(model, batchnorm=batchnorm)
    with torch.random.fork_rng(devices=[]):
        module = made()
    trained = [name for name, _ in module.named_parameters()]
    fixed = [name for name, _ in module.named_buffers() if name in module.state_dict()]
    shapes = {name: value.shape for name, value in module.state_dict().items()}

    def regrouped(weights: Weights, where: str) -> Weights:
        found = {**weights.tensors, **weights.buffers}
        missing = [name for name in (*trained, *fixed) if name not in found]
        extra = [name for name in found if name not in shapes]
        if missing or extra:
            raise RefusedError(
                f"{where}: recorded from another network than {type(module).__name__} (missing: "
                f"{', '.join(missing[:5]) or 'none'}; not expected: {', '.join(extra[:5]) or 'none'}); give the "
                "network that the federation trained"
            )
        for name in (*trained, *fixed):
            if found[name].shape != shapes[name]:
                raise RefusedError(
                    f"{where}: {name} was recorded as {tuple(found[name].shape)}, the network has "
                    f"{tuple(shapes[name])}; give the network that the federation trained"
                )
        return Weights(_floats(found, trained), _floats(found, fixed))

    def message(one: Message, where: str) -> Message:
        payload: Payload = one.payload
        if isinstance(payload, Weights) and not _quantised(payload):
            with contextlib.suppress(RefusedError):
                payload = regrouped(payload, where)
        return replace(one, payload=payload)

    def change(seen: Round) -> Round:
        if not isinstance(seen.broadcast, Weights):
            return seen
        where = f"round {seen.index}"
        received = tuple(message(one, f"{where}, {one.sender}") for one in seen.received)
        return replace(seen, broadcast=regrouped(seen.broadcast, where), received=received)

    if len(transcript.rounds):
        change(transcript.rounds[0])  # another network is refused now, not in the middle of an attack
    return transcript.with_model(made).mapped(change)


def summed(transcript: Transcript) -> Transcript:
    """What a server behind secure aggregation sees: in each round one message, the mean of all clients' weights.

    Each client counts by its number of samples where all of them disclose it, else all count the same. The sum stands
    for all their samples together: an attack that runs on it looks for all of them at once.
    """
    return transcript.mapped(_summed)


def _summed(seen: Round) -> Round:
    payloads = [one.payload for one in seen.received]
    if not payloads:
        return seen
    odd = [one for one in seen.received if not isinstance(one.payload, Weights)]
    if odd:
        kind = type(odd[0].payload).__name__.lower()
        raise RefusedError(f"round {seen.index}, {odd[0].sender}: sent {kind}; only weights are summed")
    counts = [one.disclosed.get("samples") for one in seen.received]
    known = all(isinstance(count, int) for count in counts)
    shares = [float(count) if known and isinstance(count, int) else 1.0 for count in counts]
    weights = [one for one in payloads if isinstance(one, Weights)]
    mean = Weights(
        weighted_mean([one.tensors for one in weights], shares), weighted_mean([one.buffers for one in weights], shares)
    )
    told = {key: value for key, value in seen.received[0].disclosed.items() if key != "samples"}
    if known:
        told["samples"] = int(sum(shares))
    return replace(seen, received=(Message(f"sum of {len(weights)} clients", mean, told),))


def _floats(found: Named, names: list[str]) -> dict[str, Tensor]:
    return {name: found[name].float() if found[name].is_floating_point() else found[name] for name in names}


def _quantised(weights: Weights) -> bool:
    return any(not value.is_floating_point() for value in weights.tensors.values())
