"""What a simulated federation is given, and the fields that FedSGD and FedAvg share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from pydantic import Field, PositiveFloat, PositiveInt, ValidationInfo, field_validator
from torch import Tensor

from fedleak.components import component
from fedleak.defenses.base import Defense
from fedleak.errors import DataError, ShapeError
from fedleak.learning.secure_sum import of_every_sum, summed_message
from fedleak.seeding import Seeds
from fedleak.types import Examples, Message, ModelSpec, Normalisation, Progress, PublicSet, Recording, Setup, silent

__all__ = ["FederationProtocol", "Known", "Problem", "Settings", "check_kinds"]

Known = Literal[
    "samples",
    "batch_size",
    "epochs",
    "lr",
    "momentum",
    "label_counts",
    "unique_labels",
    "batch_labels",
    "target_labels",
]
"""What a server can be assumed to know besides what crosses the wire.

`batch_labels` are the labels of every batch of every epoch, in order (nested lists); `target_labels` are the labels
that clients hold private examples of.
"""


@dataclass(frozen=True, eq=False)
class Problem:
    """Who holds what, and what they train. All inputs are pixels; `normalisation` is applied before the model."""

    clients: Mapping[str, Examples]
    test: Examples
    model: ModelSpec
    input_shape: tuple[int, ...]
    classes: int
    normalisation: Normalisation = field(default_factory=Normalisation)
    loss: str = "cross_entropy"
    public: PublicSet | None = None
    """What server and clients share, for the logit protocols."""
    targets: tuple[int, ...] = ()
    """The labels that are private to the clients; empty: all."""
    twins: int = 0
    """How many private images have a copy in `public`, seen through the other domain."""
    models: Mapping[str, ModelSpec] = field(default_factory=dict)
    """Clients whose network is another than `model`, in the logit protocols."""

    def __post_init__(self) -> None:
        if not self.clients:
            raise DataError("clients=0: a federation needs at least one client")
        if strangers := sorted(set(self.models) - set(self.clients)):
            raise DataError(f"models: {strangers} are no clients; the clients are {', '.join(self.clients)}")
        for name, examples in {**self.clients, "the test set": self.test}.items():
            if len(examples) == 0 and examples is not self.test:
                raise DataError(f"{name}: holds no examples; leave it out or use a partition that gives it some")
            if len(examples) and tuple(examples.inputs.shape[1:]) != self.input_shape:
                raise ShapeError(f"{name}: images of {tuple(examples.inputs.shape[1:])}, expected {self.input_shape}")
            if len(examples):
                check_kinds(name, examples.inputs, examples.labels)
            if len(examples) and not 0 <= int(examples.labels.min()) <= int(examples.labels.max()) < self.classes:
                raise DataError(f"{name}: labels must lie in 0 .. {self.classes - 1}, the number of classes less one")


def check_kinds(name: str, inputs: Tensor, labels: Tensor | None) -> None:
    """Refuses what torch would stop at in the middle of training, or take for something else."""
    if inputs.dtype != torch.float32:
        raise DataError(
            f"{name}: pixels of {inputs.dtype}; they must be float32 from 0 to 1 (of bytes: inputs.float() / 255)"
        )
    if labels is not None and (labels.dtype != torch.int64 or tuple(labels.shape) != (len(inputs),)):
        raise DataError(
            f"{name}: labels of shape {tuple(labels.shape)} and {labels.dtype} for {len(inputs)} images; give one "
            "int64 number for each (labels.long(), of one-hot rows labels.argmax(1))"
        )


@runtime_checkable
class FederationProtocol(Protocol):
    """How a federation is run: a frozen dataclass whose fields are the hyperparameters."""

    paper: ClassVar[str]
    revision: ClassVar[int]
    sends: ClassVar[type]

    def __call__(
        self, problem: Problem, defense: Defense, seeds: Seeds, progress: Progress = silent, device: str = "cpu"
    ) -> Recording: ...


@component
class Settings:
    """The fields that FedSGD and FedAvg share."""

    rounds: PositiveInt = Field(default=1, description="rounds of the federation")
    lr: PositiveFloat = Field(default=0.1, description="learning rate")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="momentum of the SGD")
    batch_size: PositiveInt | None = Field(default=None, description="examples in a step; none: all at once")
    shuffle: bool = Field(default=True, description="draw the order of the examples anew for every epoch")
    participation: float = Field(default=1.0, gt=0, le=1, description="share of the clients in a round, at least one")
    examples: PositiveInt | None = Field(
        default=None, description="in the attacked round each client uses only this many of its examples; none: all"
    )
    attacked_round: PositiveInt = Field(default=1, description="the round that `examples` holds for")
    record: Literal["attacked", "all"] = Field(
        default="attacked", description="rounds in the transcript: up to the attacked one, or all of them"
    )
    disclose: tuple[Known, ...] = Field(
        default=("samples", "batch_size", "epochs", "lr", "momentum"),
        description="what the server is assumed to know besides what crosses the wire",
    )
    secure_aggregation: bool = Field(
        default=False,
        description="of a round the server sees only the mean of what its clients send, weighted by their samples",
    )
    evaluate_every: PositiveInt = Field(default=1, description="rounds from one test of the global model to the next")
    vectorise: Literal["auto", "always", "never"] = Field(
        default="auto", description="train clients of equal size at once; auto: where that is faster"
    )

    @field_validator("attacked_round")
    @classmethod
    def _within(cls, value: int, info: ValidationInfo) -> int:
        rounds = info.data.get("rounds")
        if rounds is not None and value > rounds:
            raise ValueError(f"must be one of the {rounds} rounds; lower it or raise rounds")
        return value

    def recorded_rounds(self) -> int:
        """The transcript holds rounds 1 to this one."""
        return self.rounds if self.record == "all" else self.attacked_round

    def evaluated_rounds(self) -> tuple[int, ...]:
        """The rounds after which `Truth.utility` was measured; 0 is before round 1. The last is always among them."""
        return tuple(sorted({*range(0, self.rounds + 1, self.evaluate_every), self.rounds}))

    def setup(self, problem: Problem, epochs: int) -> Setup:
        """What is common knowledge in this federation."""
        known = self._told({"batch_size": self.batch_size, "epochs": epochs, "lr": self.lr, "momentum": self.momentum})
        return Setup(
            model=problem.model,
            input_shape=problem.input_shape,
            classes=problem.classes,
            loss=problem.loss,
            normalisation=problem.normalisation,
            # How each client trains says little about their sum; what holds is said with every sum.
            disclosed=of_every_sum(known) if self.secure_aggregation else known,
        )

    def seen(
        self, messages: tuple[Message, ...], samples: Sequence[int], epochs: int, index: int
    ) -> tuple[Message, ...]:
        """What the server sees of what the clients of a round sent."""
        if not self.secure_aggregation:
            return messages
        known = self._told({"batch_size": self.batch_size, "epochs": epochs})
        return (summed_message(messages, known, f"round {index}", samples),)

    def _told(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in facts.items() if name in self.disclose}
