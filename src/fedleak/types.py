"""The words fedleak speaks: what crosses the wire, what only the evaluator holds, and what an attack finds.

The transcript is the threat model. `Transcript` and everything in it is what an honest-but-curious server sees;
`Truth` is what only the evaluator holds. No function takes both except the metrics.

Pixels: `Truth.inputs` and every reconstruction are images in pixel space, [0, 1], shaped (n, channels, height, width).
A model sees `Normalisation.apply(pixels)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedleak.notebook import finding_html

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

Named = Mapping[str, Tensor]
"""Tensors by parameter name, ordered as `model.named_parameters()`."""

Status = Literal["ok", "diverged", "refused", "failed", "out_of_memory", "timed_out"]

Progress = Callable[[int, int], None]
"""Called as progress(done, total) by long work."""


def silent(done: int, total: int) -> None:
    """A progress callback that shows nothing."""


# --- what a client can send: a closed sum type -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Gradients:
    """FedSGD: the gradient of the client's loss."""

    tensors: Named


@dataclass(frozen=True, eq=False)
class Weights:
    """FedAvg: the client's weights after local training. `buffers` are what is not trained (BatchNorm statistics)."""

    tensors: Named
    buffers: Named = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Predictions:
    """FedMD, FedGEMS, DS-FL: outputs on the public examples `index`."""

    values: Tensor
    scale: Literal["logits", "probabilities"]
    index: Tensor


Payload = Gradients | Weights | Predictions


# --- what the server sees -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelSpec:
    """Which network the federation trains: a name in `fedleak.models` with its arguments.

    `factory` is a live constructor for a user's own module. It is never written to disk: a transcript that names an
    unknown model is given one with `Transcript.with_model`.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    factory: Callable[[], nn.Module] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Normalisation:
    """What is done to pixels in [0, 1] before the model sees them: (x - mean) / std, one number per channel."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def _shaped(self, values: tuple[float, ...], like: Tensor) -> Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device).reshape(-1, 1, 1)

    def apply(self, pixels: Tensor) -> Tensor:
        """Pixels (..., C, H, W) to model inputs."""
        return (pixels - self._shaped(self.mean, pixels)) / self._shaped(self.std, pixels)

    def undo(self, inputs: Tensor) -> Tensor:
        """Model inputs (..., C, H, W) back to pixels."""
        return inputs * self._shaped(self.std, inputs) + self._shaped(self.mean, inputs)


@dataclass(frozen=True, eq=False)
class PublicSet:
    """Examples that server and clients share in the logit protocols. Pixels; labels may be missing.

    `domains` (n,) is 0 where an image is of the private images' domain (D_0 of pli.txt: clean faces of other people),
    1 where it is of another (D_a: masked, blurred or younger faces, of all people); None: all are of one domain.
    """

    inputs: Tensor
    labels: Tensor | None = None
    domains: Tensor | None = None

    def __len__(self) -> int:
        return int(self.inputs.shape[0])


@dataclass(frozen=True)
class Setup:
    """What is common knowledge in a federation, and in `disclosed` what else the server is assumed to know."""

    model: ModelSpec
    input_shape: tuple[int, ...]
    classes: int
    loss: str = "cross_entropy"
    normalisation: Normalisation = Normalisation()
    public: PublicSet | None = None
    disclosed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Message:
    """What one client sent in one round; `disclosed` is per client (samples, ...)."""

    sender: str
    payload: Payload
    disclosed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Round:
    """One round as the server sees it. `index` counts from 1. `server` holds the server's own predictions on the
    public set: the attacker's own knowledge, never something a client sent."""

    index: int
    broadcast: Weights | Predictions | None
    received: tuple[Message, ...]
    server: Predictions | None = None


@dataclass(frozen=True)
class Transcript:
    """Everything the server saw. `rounds` may be lazy: a round is read from disk when it is asked for."""

    setup: Setup
    rounds: Sequence[Round]

    def round(self, index: int) -> Round:
        """The round with this index, counted from 1; negative counts from the end."""
        from fedleak.errors import RefusedError

        count = len(self.rounds)
        position = index - 1 if index > 0 else count + index
        if index == 0 or not 0 <= position < count:
            raise RefusedError(f"round={index}: the transcript holds rounds 1 to {count}; ask for one of these")
        return self.rounds[position]

    def with_model(self, factory: Callable[[], nn.Module]) -> Transcript:
        """The same transcript with a live constructor for its model."""
        return replace(self, setup=replace(self.setup, model=replace(self.setup.model, factory=factory)))

    def granting(self, names: frozenset[str]) -> Transcript:
        """The same transcript with only these pieces of disclosed knowledge: what one attack is told."""

        def only(known: Mapping[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in known.items() if key in names}

        told = self.mapped(
            lambda r: replace(r, received=tuple(replace(m, disclosed=only(m.disclosed)) for m in r.received))
        )
        return replace(told, setup=replace(self.setup, disclosed=only(self.setup.disclosed)))

    def mapped(self, change: Callable[[Round], Round]) -> Transcript:
        """The same transcript with every round seen through a function, when it is asked for."""
        return replace(self, rounds=_Mapped(self.rounds, change))


class _Mapped(Sequence[Round]):
    """A lazy sequence of rounds seen through a function."""

    def __init__(self, rounds: Sequence[Round], change: Callable[[Round], Round]) -> None:
        self._rounds, self._change = rounds, change

    def __len__(self) -> int:
        return len(self._rounds)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self._change(r) for r in self._rounds[at]]
        return self._change(self._rounds[at])


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


# --- what an attack finds -----------------------------------------------------------------------------------------


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
    client whose picture was taken; `prior` (n, C, H, W) is the picture that the attack believed in before it saw a
    logit. `by_round` is `inputs` as it was after each of the attacked rounds.
    """

    sender: str
    round: int
    labels: Tensor
    inputs: Tensor
    senders: tuple[str, ...] = ()
    candidates: Tensor | None = None
    chosen: tuple[str, ...] = ()
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

    `history` is (round, weights) after every round on the way, the last included.
    """

    sender: str
    round: int
    model: ModelSpec
    weights: Weights
    normalisation: Normalisation = Normalisation()
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
