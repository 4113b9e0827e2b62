"""Recordings of networks as people write them: BatchNorm, dropout, frozen layers, half precision.

    seen = prepare(load_transcript("recording"), Net)
    finding = fedleak.attack(seen, "dlm_plus")

An inversion runs the client's step again. It has to run the same step: without dropout, whose masks nobody knows, with
BatchNorm in the mode that the client used, and without gradients for what the client did not train.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fedleak.errors import RefusedError
from fedleak.factories import frozen_as_buffers, made_by
from fedleak.types import Gradients, Message, Named, Payload, Round, Transcript, Weights

__all__ = ["BatchNorm", "attackable", "prepare", "without_dropout"]

BatchNorm = Literal["batch", "running"]


def attackable(model: Callable[[], nn.Module], *, batchnorm: BatchNorm = "batch") -> Callable[[], nn.Module]:
    """The same network as an attack can use it.

    Dropout does nothing (also `F.dropout(..., training=self.training)`); BatchNorm uses the statistics of the "batch",
    as in training, or the "running" ones, for clients that fine-tune in eval mode; parameters with
    `requires_grad=False` become buffers; everything is in float32.
    """

    def made() -> nn.Module:
        module = frozen_as_buffers(made_by(model)).eval().float()
        for part in module.modules():
            if batchnorm == "batch" and isinstance(part, _BatchNorm):
                part.train()
        return module

    return made


def without_dropout(module: nn.Module) -> nn.Module:
    """The module itself, in which nothing is dropped any more, by layers or by `F.dropout(..., self.training)`.
    Normalisations stay in the mode that they are in."""
    for part in module.modules():
        if not isinstance(part, _NormBase):
            part.training = False
    return module


def prepare(transcript: Transcript, model: Callable[[], nn.Module], *, batchnorm: BatchNorm = "batch") -> Transcript:
    """The transcript for an attack on this network: its names checked, frozen layers among the buffers, in float32.

    Messages that are not weights or gradients of this network (another shape, a renamed layer, whole numbers) stay as
    they are, and the attack refuses them one by one with the reason; a broadcast that is not of this network is refused
    here.
    """
    made = attackable(model, batchnorm=batchnorm)
    with torch.random.fork_rng(devices=[]):
        module = made()
    expected = _Layout(module)

    def message(one: Message, where: str) -> Message:
        payload: Payload = one.payload
        with contextlib.suppress(RefusedError):
            match payload:
                case Weights():
                    payload = expected.regrouped(payload, where)
                case Gradients():
                    payload = Gradients(expected.of_trained(payload.tensors, where))
        return replace(one, payload=payload)

    def change(seen: Round) -> Round:
        if not isinstance(seen.broadcast, Weights):
            return seen
        where = f"round {seen.index}"
        received = tuple(message(one, f"{where}, {one.sender}") for one in seen.received)
        return replace(seen, broadcast=expected.regrouped(seen.broadcast, where), received=received)

    if len(transcript.rounds):
        change(transcript.rounds[0])  # another network is refused now, not in the middle of an attack
    return transcript.with_model(made).mapped(change)


class _Layout:
    """What a network trains, what it carries besides, and the shapes of both."""

    def __init__(self, module: nn.Module) -> None:
        self.name = type(module).__name__
        self.trained = [name for name, _ in module.named_parameters()]
        buffers = dict(module.named_buffers())
        self.kept = [name for name in buffers if name in module.state_dict()]
        # Buffers that no state_dict holds (persistent=False) need not have been sent, but may have been.
        self.optional = [name for name in buffers if name not in self.kept]
        # The state_dict and not the parameters: a tied layer has two names, and a recording may carry both.
        self.shapes = {name: value.shape for name, value in {**buffers, **module.state_dict()}.items()}

    def regrouped(self, weights: Weights, where: str) -> Weights:
        found = {**weights.tensors, **weights.buffers}
        self._check(found, [*self.trained, *self.kept], where)
        also = [name for name in self.optional if name in found]
        return Weights(_floats(found, self.trained), _floats(found, [*self.kept, *also]))

    def of_trained(self, gradients: Named, where: str) -> dict[str, Tensor]:
        """The gradients of what is trained; one of a frozen layer, which some frameworks send as zeros, is let go."""
        self._check(gradients, self.trained, where)
        return _floats(gradients, self.trained)

    def _check(self, found: Named, wanted: Sequence[str], where: str) -> None:
        missing = [name for name in wanted if name not in found]
        extra = [name for name in found if name not in self.shapes]
        if missing or extra:
            raise RefusedError(
                f"{where}: recorded from another network than {self.name} (missing: "
                f"{', '.join(missing[:5]) or 'none'}; not expected: {', '.join(extra[:5]) or 'none'}); give the "
                "network that the federation trained"
            )
        for name in wanted:
            if found[name].shape != self.shapes[name]:
                raise RefusedError(
                    f"{where}: {name} was recorded as {tuple(found[name].shape)}, the network has "
                    f"{tuple(self.shapes[name])}; give the network that the federation trained"
                )


def _floats(found: Named, names: Sequence[str]) -> dict[str, Tensor]:
    return {name: found[name].float() if found[name].is_floating_point() else found[name] for name in names}
