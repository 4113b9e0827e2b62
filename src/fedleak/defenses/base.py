"""What a client does before it sends: the words every defense speaks.

A defense acts at one stage. Its value there is
    protocol    the federation's `ProtocolPlan`, before it begins (one-shot, cross-domain)
    examples    the client's `Examples`, in pixels, before training
    gradients   per-example gradients of one local step, by name, with a leading axis of examples
    message     the `Payload` about to be sent
and `apply` returns a value of the same kind. It is pure: all randomness comes from `rng`, fresh at every use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch

from fedleak.learning.functional import Network
from fedleak.types import Named, Normalisation, PublicSet, Weights

__all__ = ["Context", "Defense", "Guarantee", "Plan", "ProtocolPlan", "Stage"]

Stage = Literal["protocol", "examples", "gradients", "message"]


@dataclass(frozen=True, eq=False)
class Context:
    """What a defense may use besides the value itself: all of it is known to the client that applies it."""

    stage: Stage
    client: str = ""
    round: int = 1
    broadcast: Weights | None = None
    """The weights the server sent out at the start of the round."""
    previous: Named | None = None
    """The client's own model before this round's work."""
    network: Network | None = None
    """The network that `previous` are the parameters of; it takes normalised inputs."""
    normalisation: Normalisation = field(default_factory=Normalisation)
    public: PublicSet | None = None
    samples: int = 0
    """How many of the client's examples stand behind the value."""
    rounds: int = 1
    """How many rounds are planned."""


@dataclass(frozen=True, eq=False)
class ProtocolPlan:
    """What a defense at the stage "protocol" may change before a federation begins."""

    rounds: int
    public: PublicSet | None = None


@dataclass(frozen=True)
class Plan:
    """What a proof needs to know of the deployment, and in `l2_bound` what earlier defenses of a chain established."""

    rounds: int = 1
    epochs: int | None = None
    """Passes over a client's examples in a round; None: not known."""
    dimension: int | None = None
    """How many numbers a message holds; None: not known."""
    delta: float = 1e-5
    neighbours: Literal["replace", "add_remove"] = "replace"
    """Which data sets are to look alike. "replace": one client's whole data and any other. "add_remove": its data and
    none, where a client without data sends zeros under the same noise (a client that is absent takes its noise along,
    and nothing is proven about that)."""
    buffers: bool = False
    """Does a message also carry what is not trained (BatchNorm statistics)? No defense here bounds or noises it."""
    l2_bound: float | None = None
    """The largest L2 norm that the update in one message can have; None: unbounded."""
    predictions: Literal["probabilities", "unbounded"] | None = None
    """What a message of predictions holds (logits are unbounded); None: it holds an update."""
    examples: int = 0
    """On how many public examples a message of predictions was made."""

    def longest(self) -> float | None:
        """The largest L2 norm of what a message says; None: unbounded. A probability vector is no longer than 1."""
        known = [] if self.l2_bound is None else [self.l2_bound]
        if self.predictions == "probabilities" and self.examples:
            known.append(math.sqrt(self.examples))
        return min(known, default=None)

    def sensitivity(self) -> float | None:
        """How far, in L2 norm, one message can move between neighbours; None: unbounded."""
        longest = self.longest()
        if longest is None or self.buffers:
            return None
        # |a - b|^2 = |a|^2 + |b|^2 - 2 ab, and nothing in a or b is negative where they hold probabilities.
        apart = math.sqrt(2.0) if self.predictions == "probabilities" else 2.0
        return longest * (apart if self.neighbours == "replace" else 1.0)

    def l1_sensitivity(self) -> float | None:
        """The same in L1 norm: at most 2 for every probability vector that is replaced, 1 for one that is removed."""
        euclid, known = self.sensitivity(), []
        if euclid is None:
            return None
        if self.dimension is not None:
            known.append(euclid * math.sqrt(self.dimension))
        if self.predictions == "probabilities" and self.examples:
            known.append(self.examples * (2.0 if self.neighbours == "replace" else 1.0))
        return min(known, default=None)


@dataclass(frozen=True)
class Guarantee:
    """What is proven: "dp" an (epsilon, delta), "empirical" nothing but what attacks measure, "none" nothing at all."""

    kind: Literal["none", "empirical", "dp"]
    statement: str
    epsilon: float | None = None
    delta: float | None = None


@runtime_checkable
class Defense(Protocol):
    """A frozen dataclass whose fields are the hyperparameters. `stage` None: a composite whose members decide."""

    paper: ClassVar[str]
    revision: ClassVar[int]
    stage: ClassVar[Stage | None]

    def apply(self, value: Any, context: Context, rng: torch.Generator) -> Any:
        """The value as the client uses or sends it; of the same kind, and never changed in place."""
        ...

    def after(self, plan: Plan) -> Plan:
        """What is known of a message behind this defense, for the proofs of those that follow it in a chain."""
        ...

    def guarantee(self, plan: Plan) -> Guarantee:
        """What this defense proves in such a deployment."""
        ...
