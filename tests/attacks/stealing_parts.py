"""Transcripts of predictions made by hand: teachers on a small public set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedleak.models import build_model
from fedleak.types import Message, ModelSpec, Predictions, PublicSet, Round, Setup, Transcript

SHAPE, CLASSES, PUBLIC = (1, 6, 6), 4, 96
IMITATION: dict[str, Any] = {"name": "mlp", "hidden": 24}
Scale = Literal["logits", "probabilities"]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int = PUBLIC, seed: int = 11) -> Tensor:
    return torch.rand(count, *SHAPE, generator=rng(seed))


def teacher(seed: int, inputs: Tensor) -> Tensor:
    """Logits of a random network, scaled so that it is sure of itself."""
    module = build_model(ModelSpec("mlp", {"hidden": 8}), SHAPE, CLASSES, rng(seed))
    with torch.no_grad():
        found: Tensor = module(inputs)
    return 12 * (found - found.mean(dim=0))


def transcript(sent: Sequence[Mapping[str, Predictions]], public: Tensor | None = None) -> Transcript:
    """`sent[t]` is what each client sent in round t + 1."""
    setup = Setup(
        ModelSpec("mlp", {"hidden": 8}), SHAPE, CLASSES, public=PublicSet(images() if public is None else public)
    )
    rounds = tuple(
        Round(number, None, tuple(Message(sender, payload) for sender, payload in by_sender.items()))
        for number, by_sender in enumerate(sent, 1)
    )
    return Transcript(setup, rounds)


def predictions(seed: int, scale: Scale = "probabilities", index: Tensor | None = None) -> Predictions:
    at = torch.arange(PUBLIC) if index is None else index
    logits = teacher(seed, images()[at])
    return Predictions(logits if scale == "logits" else logits.softmax(dim=-1), scale, at)


def steady(rounds: int = 3, clients: int = 2, scale: Scale = "probabilities") -> Transcript:
    """Clients that predict the same in every round."""
    return transcript([{f"client-{k}": predictions(k, scale) for k in range(clients)} for _ in range(rounds)])


def without_public(seen: Transcript) -> Transcript:
    return replace(seen, setup=replace(seen.setup, public=None))
