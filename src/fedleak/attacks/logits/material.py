"""Predictions of a round as material for the inversion networks.

paired    one network a client, [server, client], on D_0 (eq. 2)
client    one network a client, the client's alone, on D_0 (an ablation of Q)
server    one network, the server's alone, on D_0 (an ablation of Q)
pooled    one network, the predictions of all clients on the whole public set (TBI)
last      as pooled, but of the last client only: what the released code of TBI does
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch

from fedleak.attacks.logits.inputs import softened
from fedleak.attacks.logits.observed import Answers, Observed, Scene
from fedleak.attacks.logits.priors import Prior
from fedleak.attacks.logits.training import Material
from fedleak.errors import RefusedError

__all__ = ["Feed", "inputs_of", "make_material"]

Feed = Literal["paired", "client", "server", "pooled", "last"]


def inputs_of(feed: Feed, classes: int) -> int:
    """How many numbers a network takes in."""
    return 2 * classes if feed == "paired" else classes


def make_material(
    feed: Feed,
    seen: Observed,
    scene: Scene,
    group: Sequence[str],
    tau: float,
    *,
    copies: int = 1,
    prior: Prior | None = None,
) -> Material:
    """What the networks of a group of clients learn from in one round; `copies` networks for each."""
    public = len(scene)
    if feed in ("pooled", "last"):
        pooled = list(seen.clients.values())[-1 if feed == "last" else 0 :]
        everywhere = torch.arange(public, device=scene.pictures.device)
        rows = [seen.answered(everywhere, [one], public) for one in pooled]
        inputs = torch.cat([softened(one.at(row, public), tau) for one, row in zip(pooled, rows, strict=True)])
        return Material(inputs.expand(copies, -1, -1), scene.pictures, torch.cat(rows))
    who = [] if feed == "server" else [seen.clients[sender] for sender in group]
    server = [] if feed == "client" else [_server(seen)]
    shown = seen.answered(scene.clean, [*server, *who], public)
    parts = torch.stack([softened(one.at(shown, public), tau) for one in (who or server)])
    if feed == "paired":
        own = softened(server[0].at(shown, public), tau)
        parts = torch.cat([own.expand(len(who), -1, -1), parts], dim=2)
    material = Material(parts.repeat(copies, 1, 1), scene.pictures, shown)
    if prior is None:
        return material
    labels = None if scene.labels is None else scene.labels[shown]
    return replace(material, priors=prior.pictures, believed=prior.rows(labels, len(shown)))


def _server(seen: Observed) -> Answers:
    if seen.server is None:
        raise RefusedError(f"round {seen.number}: no predictions of the server")
    return seen.server
