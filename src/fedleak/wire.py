"""What crosses the wire, and what else a server is assumed to know: the threat model as types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

__all__ = [
    "Gradients",
    "Message",
    "ModelSpec",
    "Named",
    "Normalisation",
    "Payload",
    "Predictions",
    "PublicSet",
    "Round",
    "Setup",
    "Transcript",
    "Weights",
]

Named = Mapping[str, Tensor]
"""Tensors by parameter name, ordered as `model.named_parameters()`."""


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
        if len(values) != 1 and (like.ndim < 3 or len(values) != like.shape[-3]):
            from fedleak.errors import ShapeError

            raise ShapeError(
                f"normalisation: {len(values)} numbers for mean or std, and pictures of {tuple(like.shape[-3:])}; give "
                "one number, or one per channel"
            )
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
    """Everything the server saw. `rounds` may be lazy: a round is read from disk when it is asked for. Their indices
    rise; one that could not be recorded is missing."""

    setup: Setup
    rounds: Sequence[Round]

    def round(self, index: int) -> Round:
        """The round with this index; negative counts from the end of what there is."""
        return self.rounds[self.place(index)]

    def indices(self) -> Sequence[int]:
        """Which rounds there are; none is read from disk for it."""
        return _indices(self.rounds)

    def place(self, index: int) -> int:
        """Where that round stands among `rounds`; nothing is read."""
        from fedleak.errors import RefusedError

        known = self.indices()
        if not known:
            raise RefusedError(
                f"round={index}: the transcript holds no rounds: an empty history; record at least one round"
            )
        if index < 0 and len(known) + index >= 0:
            return len(known) + index
        if index in known:
            return known.index(index)
        whole = len(known) == known[-1] - known[0] + 1
        held = f"{known[0]} to {known[-1]}" if whole else ", ".join(map(str, known))
        raise RefusedError(f"round={index}: the transcript holds rounds {held}; ask for one of these")

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


def _indices(rounds: Sequence[Round]) -> Sequence[int]:
    known: Sequence[int] | None = getattr(rounds, "indices", None)  # of a lazy sequence
    return [one.index for one in rounds] if known is None else known


class _Mapped(Sequence[Round]):
    """A lazy sequence of rounds seen through a function."""

    def __init__(self, rounds: Sequence[Round], change: Callable[[Round], Round]) -> None:
        self._rounds, self._change = rounds, change
        self.indices: Sequence[int] = _indices(rounds)

    def __len__(self) -> int:
        return len(self._rounds)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self._change(r) for r in self._rounds[at]]
        return self._change(self._rounds[at])
