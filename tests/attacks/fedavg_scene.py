"""Clients that train locally, written out by hand: what a server would see after one round of FedAvg."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedleak.learning.batches import schedule
from fedleak.learning.functional import Network, cross_entropy
from fedleak.learning.sgd import local_sgd
from fedleak.models import build_model
from fedleak.types import Message, ModelSpec, Normalisation, Round, Setup, Transcript, Weights

SHAPE, CLASSES = (1, 6, 6), 4
NORMAL = Normalisation((0.4,), (0.5,))


@dataclass(frozen=True, eq=False)
class Scene:
    """A transcript of one round and, apart from it, pixels, labels and batches behind each message."""

    transcript: Transcript
    images: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)
    batches: list[tuple[tuple[Tensor, ...], ...]] = field(default_factory=list)


def trained(
    counts: Sequence[int] = (4, 4),
    *,
    epochs: int = 2,
    batch_size: int | None = 2,
    lr: float = 0.05,
    model: ModelSpec | None = None,
    shape: tuple[int, int, int] = SHAPE,
    seed: int = 0,
    told: dict[str, Any] | None = None,
) -> Scene:
    """One client per entry of `counts`, each with that many examples; `told` overrules what is disclosed."""
    rng = torch.Generator().manual_seed(seed)
    spec = model or ModelSpec("mlp", {"hidden": 12})
    network = Network(build_model(spec, shape, CLASSES, rng))
    weights = network.initial()
    scene = Scene(Transcript(Setup(spec, shape, CLASSES), ()))
    messages = []
    for number, count in enumerate(counts):
        pixels = torch.rand(count, *shape, generator=rng)
        labels = torch.randint(0, CLASSES, (count,), generator=rng)
        order = schedule(count, batch_size, epochs, rng)
        flat = [batch for epoch in order for batch in epoch]
        sent = local_sgd(network, cross_entropy, weights, NORMAL.apply(pixels), labels, flat, lr)
        disclosed = {
            "samples": count,
            "label_counts": torch.bincount(labels, minlength=CLASSES).tolist(),
            "batch_labels": [labels[batch].tolist() for batch in flat],
        }
        messages.append(Message(f"client-{number}", Weights(sent), {**disclosed, **(told or {})}))
        scene.images.append(pixels)
        scene.labels.append(labels)
        scene.batches.append(order)
    facts = {"batch_size": batch_size, "epochs": epochs, "lr": lr, **(told or {})}
    setup = Setup(spec, shape, CLASSES, normalisation=NORMAL, disclosed=facts)
    seen = Transcript(setup, (Round(1, Weights(weights), tuple(messages)),))
    return Scene(seen, scene.images, scene.labels, scene.batches)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
