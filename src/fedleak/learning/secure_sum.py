"""Secure aggregation: of what its clients send the server sees the weighted mean, and nothing else.

The mean of gradients, weighted by samples, is the gradient of all the samples in one batch; so is the mean of weights
after one step each. After more steps it is nobody's training: what an attack is told about how a client trained
(`epochs`, `batch_size`) does not hold for it, and is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fedleak.errors import RefusedError, ShapeError
from fedleak.learning.aggregate import weighted_mean
from fedleak.types import Gradients, Message, Payload, Predictions, Round, Transcript, Weights

__all__ = ["TRAINING", "is_sum", "of_every_sum", "summed", "summed_message"]

TRAINING = ("epochs", "batch_size")
"""What describes a client's training, not a sum's."""
TOGETHER = ("label_counts",)
"""What adds up."""
NAME = re.compile(r"sum of \d+ clients")
OWN = ("unique_labels", "batch_labels", "quantisation")
"""What says nothing about a sum."""


def summed(transcript: Transcript) -> Transcript:
    """What a server behind secure aggregation sees: in each round one message, the mean of what all clients sent.

    Each client counts by its number of samples where all of them disclose it, else all count the same. The sum stands
    for all their samples together: an attack that runs on it looks for all of them at once.
    """
    setup = transcript.setup

    def change(seen: Round) -> Round:
        if not seen.received:
            return seen
        return replace(seen, received=(summed_message(seen.received, setup.disclosed, f"round {seen.index}"),))

    return replace(transcript.mapped(change), setup=replace(setup, disclosed=of_every_sum(setup.disclosed)))


def of_every_sum(disclosed: Mapping[str, Any]) -> dict[str, Any]:
    """What a setup may go on to disclose; each sum says for itself whether it is one step of training."""
    return {name: value for name, value in disclosed.items() if name not in TRAINING}


def is_sum(message: Message) -> bool:
    """Does this message stand for several clients?"""
    return NAME.fullmatch(message.sender) is not None


def summed_message(
    messages: Sequence[Message], common: Mapping[str, Any], where: str, samples: Sequence[int] | None = None
) -> Message:
    """The one message that stands for all of these. `common` is what the setup discloses about every client.

    The mean is weighted by `samples`; None: by the disclosed ones, or where a client has none, all alike.
    """
    counts = [one.disclosed.get("samples") for one in messages]
    told = [count for count in counts if isinstance(count, int) and not isinstance(count, bool) and count > 0]
    known = told if len(told) == len(counts) else None
    facts = {name: value for name, value in common.items() if name in TRAINING}
    facts.update(_shared([one.disclosed for one in messages]))
    training = {name: facts.pop(name) for name in TRAINING if name in facts}
    gradients = isinstance(messages[0].payload, Gradients)
    if gradients or _one_step(training, known or samples):
        facts.update({name: one for name, one in (("epochs", 1), ("batch_size", None)) if name in training})
    if known is not None:
        facts["samples"] = sum(known)
    shares = samples or known or [1] * len(messages)
    return Message(f"sum of {len(messages)} clients", _mean([one.payload for one in messages], shares, where), facts)


def _shared(disclosed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all clients disclose alike, and the sum of what adds up."""
    facts: dict[str, Any] = {}
    for name, value in disclosed[0].items():
        values = [one.get(name) for one in disclosed]
        if name in TOGETHER and all(isinstance(one, list) and len(one) == len(value) for one in values):
            facts[name] = [sum(column) for column in zip(*values, strict=True)]
        elif name not in (*TOGETHER, *OWN, "samples") and all(one == value for one in values):
            facts[name] = value
    return facts


def _one_step(training: Mapping[str, Any], samples: Sequence[int] | None) -> bool:
    """Did every client take one step on all its examples?"""
    if training.get("epochs") != 1 or "batch_size" not in training:
        return False
    size = training["batch_size"]
    return size is None or (isinstance(size, int) and samples is not None and size >= max(samples))


def _mean(payloads: Sequence[Payload], shares: Sequence[int], where: str) -> Payload:
    kinds = sorted({type(one).__name__.lower() for one in payloads})
    if len(kinds) > 1:
        raise RefusedError(f"{where}: clients sent {' and '.join(kinds)}, and these have no sum")
    try:
        match payloads[0]:
            case Gradients():
                return Gradients(weighted_mean([one.tensors for one in payloads if isinstance(one, Gradients)], shares))
            case Weights():
                sent = [one for one in payloads if isinstance(one, Weights)]
                tensors = weighted_mean([one.tensors for one in sent], shares)
                return Weights(tensors, weighted_mean([one.buffers for one in sent], shares))
            case Predictions(scale=scale, index=index):
                said = [one for one in payloads if isinstance(one, Predictions)]
                if any(one.scale != scale or not torch.equal(one.index, index) for one in said):
                    raise ShapeError("predictions of other examples, or on another scale")
                return Predictions(
                    weighted_mean([{"values": one.values} for one in said], shares)["values"], scale, index
                )
    except ShapeError as problem:
        raise RefusedError(f"{where}: what the clients sent cannot be summed: {problem}") from None
