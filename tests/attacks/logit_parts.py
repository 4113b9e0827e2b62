"""Transcripts of predictions made by hand: no federation, no truth, only what the server of a logit protocol sees.

Faces are mixtures of a few patterns, one for each class. D_0 holds mixtures, D_a darkened ones of every class. A client
knows the patterns of the classes it holds: its logits say how much of each is in a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedleak.types import Message, ModelSpec, Predictions, PublicSet, Round, Setup, Transcript

CLASSES = 6
TARGETS = (0, 1, 2)
SHAPE = (1, 8, 8)


@dataclass(frozen=True, eq=False)
class LogitScene:
    transcript: Transcript
    patterns: Tensor
    """(classes, 1, 8, 8): what a picture of each class looks like."""

    def public(self) -> PublicSet:
        found = self.transcript.setup.public
        assert found is not None
        return found

    def changed(self, **of_setup: Any) -> Transcript:
        return replace(self.transcript, setup=replace(self.transcript.setup, **of_setup))

    def rounds_with(self, at: int = 0, **of_first: Any) -> Transcript:
        """The first client's predictions of one round with other fields."""
        rounds = list(self.transcript.rounds)
        first, *others = rounds[at].received
        payload = replace(first.payload, **of_first)
        rounds[at] = replace(rounds[at], received=(replace(first, payload=payload), *others))
        return replace(self.transcript, rounds=rounds)


def patterns() -> Tensor:
    rng = torch.Generator().manual_seed(5)
    coarse = torch.rand(CLASSES, 1, 4, 4, generator=rng)
    return torch.nn.functional.interpolate(coarse, size=SHAPE[1:], mode="bilinear")


def stage_logits(
    holds: Sequence[Sequence[int]] = ((0, 1), (2,)),
    *,
    rounds: int = 2,
    scale: str = "logits",
    server: bool = True,
    labelled: bool = True,
    domains: bool = True,
    clean: int = 48,
    sharp: float = 12.0,
    seed: int = 0,
) -> LogitScene:
    """One client for every entry of `holds`, the target classes it knows."""
    rng = torch.Generator().manual_seed(seed)
    shown = patterns()
    shares = torch.rand(clean, CLASSES, generator=rng).pow(3)
    shares = shares / shares.sum(dim=1, keepdim=True)
    own = torch.randint(len(TARGETS), CLASSES, (clean,), generator=rng)
    pictures = torch.einsum("nk,kchw->nchw", shares, shown)
    other = torch.arange(CLASSES).repeat(3)
    dark = shown[other] * torch.tensor([1.0] * 4 + [0.3] * 4).reshape(1, 1, 8, 1)
    dark = (dark + 0.02 * torch.randn(dark.shape, generator=rng)).clamp(0, 1)
    inputs, labels = torch.cat([pictures, dark]), torch.cat([own, other])
    kinds = torch.cat([torch.zeros(clean, dtype=torch.long), torch.ones(len(other), dtype=torch.long)])
    everywhere = torch.cat([shares, torch.nn.functional.one_hot(other, CLASSES).float()])

    def predictions(known: Sequence[int]) -> Predictions:
        seen = everywhere.clone()
        for label in TARGETS:
            if label not in known:
                seen[:, label] = 0.1 * torch.rand(len(seen), generator=rng)
        values = sharp * seen
        values = torch.softmax(values, dim=1) if scale == "probabilities" else values
        return Predictions(values, scale, torch.arange(len(inputs)))

    made = []
    for index in range(1, rounds + 1):
        messages = tuple(
            Message(f"client-{k}", predictions([*held, *range(len(TARGETS), CLASSES)])) for k, held in enumerate(holds)
        )
        made.append(Round(index, None, messages, predictions(range(len(TARGETS), CLASSES)) if server else None))
    public = PublicSet(inputs, labels if labelled else None, kinds if domains else None)
    setup = Setup(
        ModelSpec("mlp", {"hidden": 8}), SHAPE, CLASSES, public=public, disclosed={"target_labels": list(TARGETS)}
    )
    return LogitScene(Transcript(setup, made), shown)
