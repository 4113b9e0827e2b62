"""The fields that the stealing recipes share, and how a preset fills them in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from fedleak.components import RoundNumber, component, filled
from fedleak.models.tables import check_table, spec_of
from fedleak.types import ModelSpec, Setup

__all__ = ["OF_THE_FEDERATION", "PAPER", "PAPER_OPEN", "Preset", "StealingSettings"]

Preset = Literal["strong", "paper", "paper_open"]

PAPER: Mapping[str, Any] = {"lr": 0.01, "batch_size": 128}
"""adamsa.txt E.3, Close-world. How many epochs a round the attacker trains is not given there."""

PAPER_OPEN: Mapping[str, Any] = {"lr": 0.01, "batch_size": 256}
"""adamsa.txt E.3, both Open-worlds."""

OF_THE_FEDERATION = "federation"
"""The `network` that says: the one that the federation names. A word, because TOML has no null."""


@component
class StealingSettings:
    """Settings of the imitation. The defaults are the preset "strong"; values that are given win over a preset."""

    draws_as: ClassVar[str] = "stealing"
    """All recipes draw the same first weights and batches: on one victim two of them differ by the recipe alone."""
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"strong": {}, "paper": PAPER, "paper_open": PAPER_OPEN}

    preset: Preset = "strong"
    network: dict[str, Any] | str = Field(
        default={"name": "adamsa_cnn", "widths": [128, 256]},
        description="the imitation: a model's name and its arguments; 'federation': the network that the federation "
        "names (with `fedleak attack --model`, that one)",
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

    @field_validator("network", mode="before")
    @classmethod
    def _table(cls, given: Any) -> Any:
        """A name alone stands for the model with its defaults, None for the federation's network."""
        if given is None:
            return OF_THE_FEDERATION
        if isinstance(given, str) and given != OF_THE_FEDERATION:
            return {"name": given}
        if not isinstance(given, str | Mapping):
            raise ValueError("must be a table of a model's name and its arguments, or a name")
        return given

    @field_validator("network")
    @classmethod
    def _known(cls, network: dict[str, Any] | str) -> dict[str, Any] | str:
        if isinstance(network, str):
            return network
        check_table(network, or_else=f", or network = '{OF_THE_FEDERATION}'")
        return network

    def model(self, setup: Setup) -> ModelSpec:
        """The network that imitates."""
        return setup.model if isinstance(self.network, str) else spec_of(self.network)
