"""A small problem for the logit protocols, and short words for what a recording holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedleak.components import configure
from fedleak.federation import PROTOCOLS, Problem
from fedleak.types import Examples, ModelSpec, Predictions, PublicSet, Recording, Round

SHAPE, CLASSES = (1, 6, 6), 4
LOGIT = ("fedmd", "fedgems", "dsfl")


def pictures(labels: Tensor, rng: torch.Generator) -> Tensor:
    # The class shows as a bright row, so that there is something to learn.
    rows = nn.functional.one_hot(labels, SHAPE[1]).reshape(-1, 1, SHAPE[1], 1)
    return 0.3 * torch.rand(len(labels), *SHAPE, generator=rng) + 0.7 * rows


def problem(*held: list[int], **changes: Any) -> Problem:
    rng = torch.Generator().manual_seed(0)
    clients = {}
    for at, labels in enumerate(held or ([0, 1, 0, 1, 0], [2, 3, 2])):
        clients[f"client-{at}"] = Examples(pictures(torch.tensor(labels), rng), torch.tensor(labels))
    known = torch.arange(20) % CLASSES
    public = PublicSet(pictures(known, rng), known, (torch.arange(20) >= 12).long())
    tested = torch.arange(12) % CLASSES
    case = Problem(
        clients,
        Examples(pictures(tested, rng), tested),
        ModelSpec("mlp", {"hidden": 6}),
        SHAPE,
        CLASSES,
        public=public,
        targets=tuple(sorted({label for labels in held for label in labels})) or (0, 1, 2, 3),
        twins=3,
    )
    return replace(case, **changes)


def quick(name: str, **settings: Any) -> Any:
    small = {"rounds": 3, "lr": 0.01, "batch_size": 4, "public_batch_size": 8}
    return configure(PROTOCOLS[name], {**small, **settings})


def said(round_: Round, client: int = 0) -> Predictions:
    payload = round_.received[client].payload
    assert isinstance(payload, Predictions)
    return payload


def everything(recording: Recording) -> list[Tensor]:
    return [
        value
        for r in recording.transcript.rounds
        for value in (
            *(said(r, k).values for k in range(len(r.received))),
            *(part.values for part in (r.broadcast, r.server) if isinstance(part, Predictions)),
        )
    ]
