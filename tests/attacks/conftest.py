"""Transcripts made by hand from a network and images: no federation, no truth, only what a server would see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad

from fedleak.learning.functional import Network, cross_entropy
from fedleak.models import build_model
from fedleak.types import Gradients, Message, ModelSpec, Normalisation, Round, Setup, Transcript, Weights


@dataclass(frozen=True, eq=False)
class Scene:
    """A transcript of one round and, apart from it, the pixels and labels behind each message."""

    transcript: Transcript
    images: list[Tensor]
    labels: list[Tensor]


def stage(
    counts: Sequence[int] = (1, 1),
    *,
    shape: tuple[int, int, int] = (1, 8, 8),
    classes: int = 4,
    model: ModelSpec | None = None,
    sends: str = "gradients",
    lr: float = 0.1,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    normalisation: Normalisation | None = None,
    disclosed: dict[str, Any] | None = None,
) -> Scene:
    """One client per entry of `counts`, with that many smooth random images; one step of SGD behind each message."""
    rng = torch.Generator().manual_seed(seed)
    spec = model or ModelSpec("lenet")
    normal = normalisation or Normalisation()
    network = Network(build_model(spec, shape, classes, rng).to(dtype))
    weights, images, labels, messages = network.initial(), [], [], []
    for number, count in enumerate(counts):
        pixels = torch.rand(count, shape[0], 4, 4, generator=rng)
        pixels = torch.nn.functional.interpolate(pixels, size=shape[1:], mode="bilinear").to(dtype)
        label = torch.randperm(classes, generator=rng).repeat(-(-count // classes))[:count]
        inputs = normal.apply(pixels)
        gradient = grad(lambda w, x=inputs, y=label: cross_entropy(network({**w, **network.buffers()}, x), y))(weights)
        payload: Gradients | Weights = Gradients(gradient)
        if sends == "weights":
            payload = Weights({name: weights[name] - lr * value for name, value in gradient.items()})
        told = {"samples": count, "unique_labels": len(set(label.tolist()))}
        messages.append(Message(f"client-{number}", payload, told))
        images.append(pixels)
        labels.append(label)
    setup = Setup(spec, shape, classes, normalisation=normal, disclosed=disclosed or {})
    received = Round(1, Weights(weights, network.buffers()), tuple(messages))
    return Scene(Transcript(setup, (received,)), images, labels)


@pytest.fixture
def scene() -> Callable[..., Scene]:
    return stage


def _psnr(found: Tensor, true: Tensor) -> float:
    assert found.shape == true.shape
    return float(-10 * torch.log10((found - true).square().mean()))


@pytest.fixture
def psnr() -> Callable[[Tensor, Tensor], float]:
    return _psnr
