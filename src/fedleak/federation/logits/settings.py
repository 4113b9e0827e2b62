"""The fields that the logit protocols share, and how a preset fills them in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedleak.components import component, filled
from fedleak.federation.base import Problem
from fedleak.learning.stacked import Stack
from fedleak.models.tables import check_table, check_tables, spec_of
from fedleak.types import ModelSpec

__all__ = ["LogitKnown", "LogitSettings"]

LogitKnown = Literal["samples", "batch_size", "epochs", "lr", "label_counts", "unique_labels", "target_labels"]
"""What the server of a logit protocol can be assumed to know besides what crosses the wire."""


@component
class LogitSettings:
    """Who trains what, for how long. The defaults are the preset "paper"; values that are given win over a preset."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    preset: str = "paper"
    """Each protocol names its own."""
    rounds: PositiveInt = Field(default=5, description="rounds of the federation")
    epochs: PositiveInt = Field(default=1, description="private epochs in a round")
    server_epochs: NonNegativeInt = Field(
        default=1, description="epochs of the server's model in a round; 0: it has none"
    )
    lr: PositiveFloat = Field(default=1e-3, description="learning rate of every model")
    optimizer: Literal["adam", "sgd"] = Field(default="adam", description="one for each model")
    moments: Literal["kept", "fresh"] = Field(
        default="kept", description="of Adam: kept over all phases of training, as released, or fresh for each"
    )
    weight_decay: NonNegativeFloat = Field(default=0.0, description="L2 weight decay; released: 1e-4, 3e-3 (FaceScrub)")
    batch_size: PositiveInt | None = Field(default=64, description="private examples in a step; none: all at once")
    public_batch_size: PositiveInt | None = Field(default=64, description="public examples in a step; none: all")
    uploads: Literal["logits", "probabilities"] = Field(default="logits", description="what clients send")
    alignment: PositiveInt | None = Field(
        default=None, description="public examples that predictions are made on, drawn anew each round; none: all"
    )
    client_models: tuple[dict[str, Any], ...] | None = Field(
        default=None, description="tables of name and arguments, dealt out to the clients in turn; none: all as [model]"
    )
    server_model: dict[str, Any] | None = Field(default=None, description="the server's own model; none: as [model]")
    attacked_round: PositiveInt | None = Field(
        default=None, description="the round that `record` means; none: the last"
    )
    record: Literal["attacked", "all"] = Field(
        default="all", description="rounds in the transcript: up to the attacked one, or all of them"
    )
    disclose: tuple[LogitKnown, ...] = Field(
        default=("samples", "batch_size", "epochs", "lr", "target_labels"),
        description="what the server is assumed to know besides what crosses the wire",
    )
    evaluate_every: PositiveInt = Field(default=1, description="rounds from one test of the clients to the next")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        return filled(cls.PRESETS, given, "paper")

    @field_validator("client_models", "server_model")
    @classmethod
    def _known(cls, value: Any) -> Any:
        if value == ():
            raise ValueError("must name at least one model; leave it out for all as [model]")
        if value is not None:
            check_tables(value) if isinstance(value, tuple) else check_table(value)
        return value

    @field_validator("attacked_round")
    @classmethod
    def _within(cls, value: int | None, info: ValidationInfo) -> int | None:
        rounds = info.data.get("rounds")
        if value is not None and rounds is not None and value > rounds:
            raise ValueError(f"must be one of the {rounds} rounds; lower it or raise rounds")
        return value

    @property
    def uses_public_labels(self) -> bool:
        """The public set must be labelled."""
        return False

    def begin_phase(self, models: Stack) -> None:
        """Before a phase of training: an optimizer of its own for it, unless one is kept."""
        if self.moments == "fresh":
            models.reset_optimisers()

    def recorded_rounds(self) -> int:
        """The transcript holds rounds 1 to this one."""
        return self.rounds if self.record == "all" or self.attacked_round is None else self.attacked_round

    def evaluated_rounds(self) -> tuple[int, ...]:
        """The rounds after which `Truth.utility` was measured; 0 is before round 1. The last is always among them."""
        return tuple(sorted({*range(0, self.rounds + 1, self.evaluate_every), self.rounds}))

    def predicted_rounds(self) -> tuple[int, ...]:
        """The rounds in `Truth.predicted`, whose stolen models can be judged: the evaluated ones, as far as they are
        recorded, and the last recorded one."""
        last = self.recorded_rounds()
        return tuple(sorted({last, *(index for index in self.evaluated_rounds() if 0 < index < last)}))

    def client_spec(self, problem: Problem, number: int) -> ModelSpec:
        """The model of one client: its own, or its turn of `client_models`, or that of all."""
        if own := problem.models.get(list(problem.clients)[number]):
            return own
        if self.client_models is None:
            return problem.model
        return spec_of(self.client_models[number % len(self.client_models)])

    def server_spec(self, problem: Problem) -> ModelSpec:
        """The server's own model."""
        return problem.model if self.server_model is None else spec_of(self.server_model)
