"""What an attack finds: images, label counts, pictures of classes, or copies of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fedleak.notebook import finding_html
from fedleak.wire import ModelSpec, Normalisation, Weights

__all__ = [
    "ClassReconstruction",
    "Finding",
    "LabelCounts",
    "Reconstruction",
    "RecoveredClasses",
    "RecoveredCounts",
    "RecoveredImages",
    "Status",
    "StolenModel",
    "StolenModels",
    "Trace",
]

Status = Literal["ok", "diverged", "refused", "failed", "out_of_memory", "timed_out"]


@dataclass(frozen=True, eq=False)
class Trace:
    """How the search went: `objective` is (victims, len(steps)), of the chosen restart; `snapshots` is
    (victims, len(snapshot_steps), n, C, H, W) in pixels where they were asked for."""

    steps: tuple[int, ...] = ()
    objective: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    snapshot_steps: tuple[int, ...] = ()
    snapshots: tuple[Tensor, ...] = ()
    """One (len(snapshot_steps), n, C, H, W) tensor per victim."""


@dataclass(frozen=True, eq=False)
class RecoveredImages:
    """What an attack says that one client trained on: pixels (n, C, H, W), unclipped, in no particular order."""

    sender: str
    round: int
    inputs: Tensor
    labels: Tensor | None
    objective: float
    status: Status = "ok"
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Images recovered from every victim of a transcript. `notes` says how: restarts, fallbacks, chunk sizes."""

    victims: tuple[RecoveredImages, ...]
    trace: Trace = field(default_factory=Trace)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        return finding_html(self)


@dataclass(frozen=True, eq=False)
class RecoveredCounts:
    """How many examples of every class an attack says that one client trained on: (classes,), whole numbers."""

    sender: str
    round: int
    counts: Tensor
    objective: float = float("nan")
    status: Status = "ok"
    reason: str = ""


@dataclass(frozen=True, eq=False)
class LabelCounts:
    """Label counts of every victim of a transcript."""

    victims: tuple[RecoveredCounts, ...]
    trace: Trace = field(default_factory=Trace)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        return finding_html(self)


@dataclass(frozen=True, eq=False)
class RecoveredClasses:
    """One picture for every target label, whichever client holds it: pixels (n, C, H, W), unclipped.

    `candidates` (clients, n, C, H, W) is what the logits of each of `senders` yield for every label, and `chosen` the
    client whose picture was taken; `by_rule` are the clients that every known rule of choice would take. `prior`
    (n, C, H, W) is the picture that the attack believed in before it saw a logit. `by_round` is `inputs` as it was
    after each of the attacked rounds.
    """

    sender: str
    round: int
    labels: Tensor
    inputs: Tensor
    senders: tuple[str, ...] = ()
    candidates: Tensor | None = None
    chosen: tuple[str, ...] = ()
    by_rule: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prior: Tensor | None = None
    by_round: tuple[Tensor, ...] = ()
    objective: float = float("nan")
    status: Status = "ok"
    reason: str = ""


@dataclass(frozen=True, eq=False)
class ClassReconstruction:
    """Pictures of private classes; one victim, the federation."""

    victims: tuple[RecoveredClasses, ...]
    trace: Trace = field(default_factory=Trace)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        return finding_html(self)


@dataclass(frozen=True, eq=False)
class StolenModel:
    """A model that imitates one client's: the network, its weights after the attacked round, and what it is fed.

    `history` is (round, weights) after every round on the way, the last included. Weights are on the device that the
    attack ran on.
    """

    sender: str
    round: int
    model: ModelSpec
    weights: Weights
    normalisation: Normalisation = field(default_factory=Normalisation)
    history: tuple[tuple[int, Weights], ...] = ()
    objective: float = float("nan")
    status: Status = "ok"
    reason: str = ""


@dataclass(frozen=True, eq=False)
class StolenModels:
    """Imitations of the models behind a transcript."""

    victims: tuple[StolenModel, ...]
    trace: Trace = field(default_factory=Trace)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        return finding_html(self)


Finding = Reconstruction | LabelCounts | ClassReconstruction | StolenModels
"""What an attack yields: victims, each with sender, round, objective and status; how the search went; notes."""
