"""The fields that the stealing recipes share, and how a preset fills them in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import pydantic
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from fedleak.components import RoundNumber, component, configure, filled
from fedleak.models import MODELS
from fedleak.types import ModelSpec, Setup

__all__ = ["PAPER", "PAPER_OPEN", "Preset", "StealingSettings"]

Preset = Literal["strong", "paper", "paper_open"]

PAPER: Mapping[str, Any] = {"lr": 0.01, "batch_size": 128}
"""adamsa.txt E.3, Close-world. How many epochs a round the attacker trains is not given there."""

PAPER_OPEN: Mapping[str, Any] = {"lr": 0.01, "batch_size": 256}
"""adamsa.txt E.3, both Open-worlds."""


@component
class StealingSettings:
    """Settings of the imitation. The defaults are the preset "strong"; values that are given win over a preset."""

    draws_as: ClassVar[str] = "stealing"
    """All recipes draw the same first weights and batches: on one victim two of them differ by the recipe alone."""
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"strong": {}, "paper": PAPER, "paper_open": PAPER_OPEN}

    preset: Preset = "strong"
    network: dict[str, Any] | None = Field(
        default_factory=lambda: {"name": "adamsa_cnn", "widths": [128, 256]},
        description="the imitation: a model's name and its arguments; none: the network that the federation names",
    )
    epochs: PositiveInt = Field(default=5, description="passes over the public set in every round")
    steps: NonNegativeInt = Field(default=0, description="steps of Adam in every round; 0: as many as `epochs` make")
    lr: PositiveFloat = Field(default=0.001, description="learning rate of Adam")
    batch_size: PositiveInt = Field(default=128, description="public examples in a step")
    restarts: NonNegativeInt = Field(
        default=0, description="further imitations of every victim; the one with the smallest objective is kept"
    )
    round: RoundNumber = Field(default=-1, description="the last attacked round, from 1; negative counts from the end")
    victims: PositiveInt | None = Field(default=None, description="attack only so many clients; none: all")
    history: bool = Field(default=True, description="keep the weights after every round")
    chunk: PositiveInt = Field(default=16, description="victims that are imitated at once")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        return filled(cls.PRESETS, given, "strong")

    @model_validator(mode="after")
    def _known_network(self) -> Self:
        if self.network is None:
            return self
        name = self.network.get("name")
        if name not in MODELS:
            raise ValueError(f"network: name={name!r} is not one of {', '.join(MODELS)}")
        try:
            configure(MODELS[name], {key: value for key, value in self.network.items() if key != "name"})
        except pydantic.ValidationError as problem:
            first = problem.errors(include_url=False)[0]
            raise ValueError(f"network.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        return self

    def model(self, setup: Setup) -> ModelSpec:
        """The network that imitates."""
        if self.network is None:
            return setup.model
        arguments = {key: value for key, value in self.network.items() if key != "name"}
        return ModelSpec(str(self.network["name"]), arguments)
