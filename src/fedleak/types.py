"""The words fedleak speaks: what crosses the wire, what only the evaluator holds, and what an attack finds.

The transcript is the threat model. `Transcript` and everything in it is what an honest-but-curious server sees;
`Truth` is what only the evaluator holds. No function takes both except the metrics.

Pixels: `Truth.private.inputs` and every reconstruction are images in pixel space, [0, 1], shaped (n, channels, height,
width). A model sees `Normalisation.apply(pixels)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedleak.findings import (
    ClassReconstruction,
    Finding,
    LabelCounts,
    Reconstruction,
    RecoveredClasses,
    RecoveredCounts,
    RecoveredImages,
    Status,
    StolenModel,
    StolenModels,
    Trace,
)
from fedleak.wire import (
    Gradients,
    Message,
    ModelSpec,
    Named,
    Normalisation,
    Payload,
    Predictions,
    PublicSet,
    Round,
    Setup,
    Transcript,
    Weights,
)

__all__ = [
    "Attack",
    "ClassReconstruction",
    "Examples",
    "Finding",
    "Gradients",
    "LabelCounts",
    "Message",
    "ModelSpec",
    "Named",
    "Normalisation",
    "Payload",
    "Predictions",
    "Progress",
    "PublicSet",
    "Reconstruction",
    "Recording",
    "RecoveredClasses",
    "RecoveredCounts",
    "RecoveredImages",
    "Round",
    "Setup",
    "Status",
    "StolenModel",
    "StolenModels",
    "Trace",
    "Transcript",
    "Truth",
    "Weights",
    "silent",
]

Progress = Callable[[int, int], None]
"""Called as progress(done, total) by long work."""


def silent(done: int, total: int) -> None:
    """A progress callback that shows nothing."""


# --- what only the evaluator sees ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Examples:
    """Pixels (n, C, H, W) in [0, 1] and integer labels (n,)."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def take(self, index: Tensor) -> Examples:
        return Examples(self.inputs[index], self.labels[index])


@dataclass(frozen=True, eq=False)
class Truth:
    """What only the evaluator holds.

    `used[(round, sender)]` are the positions in `private` of the examples behind that message; `correct` is one 0/1
    per test example of the final global model; `utility` is the test accuracy at the rounds that the protocol's
    `evaluated_rounds()` names, the first before round 1, the last after the last round.

    Of the logit protocols, where every client has a model of its own: `correct` is the share of the clients whose final
    model is right; `predicted[(round, sender)]` is the class that the model behind that message gives each test
    example; `public` is what the server and all clients share, and `twins` how many private images have a copy in it,
    seen through the other domain; `entropies` holds, in nats, how sure the models are: "server on public", "server on
    private", "client on public", "client on private" (each client on its own examples), one number per model and
    example, all at the last recorded round.
    """

    private: Examples
    owners: tuple[str, ...]
    used: Mapping[tuple[int, str], Tensor]
    test: Examples
    utility: tuple[float, ...] = ()
    correct: Tensor = field(default_factory=lambda: torch.zeros(0))
    predicted: Mapping[tuple[int, str], Tensor] = field(default_factory=dict)
    public: PublicSet | None = None
    twins: int = 0
    entropies: Mapping[str, Tensor] = field(default_factory=dict)

    def behind(self, round_index: int, sender: str) -> Examples:
        """The private examples behind one message."""
        return self.private.take(self.used[(round_index, sender)])


@dataclass(frozen=True)
class Recording:
    """What a simulated federation leaves: what the server saw, and apart from it, what only the evaluator knows."""

    transcript: Transcript
    truth: Truth


@runtime_checkable
class Attack(Protocol):
    """A frozen dataclass whose fields are the hyperparameters.

    It gets a transcript and a generator, never the truth; the caller judges success, never the attack.
    """

    paper: ClassVar[str]
    reads: ClassVar[tuple[type, ...]]
    needs: ClassVar[frozenset[str]]
    needs_from_weights: ClassVar[frozenset[str]]
    yields: ClassVar[type]
    revision: ClassVar[int]

    def __call__(self, seen: Transcript, *, rng: torch.Generator, progress: Progress = silent) -> Finding: ...
