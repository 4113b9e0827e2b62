"""The fields that tbi, ptbi and pli share, and how a preset fills them in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from fedleak.attacks.logits.training import Norm
from fedleak.components import RoundNumber, component, filled
from fedleak.learning.precision import Precision

__all__ = ["LogitSettings"]


@component
class LogitSettings:
    """How inversion networks are trained; the numbers are those of pli.txt, appendix C."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    learns_from_clean: ClassVar[bool] = True
    """Without D_0, public pictures of the private domain, it is refused."""

    preset: str = "paper"
    """Each recipe names its own."""
    steps: PositiveInt = Field(default=3, description="M: epochs over the public pictures in every round")
    restarts: NonNegativeInt = Field(
        default=0, description="further networks for every client, of which the one with the smallest loss counts"
    )
    tau: PositiveFloat = Field(default=3.0, description="temperature of the softmax over predictions")
    lr: PositiveFloat = Field(default=3e-5, description="step length of Adam")
    weight_decay: NonNegativeFloat = Field(default=1e-4, description="of Adam")
    batch_size: PositiveInt = Field(default=8, description="public pictures in a step")
    width: PositiveFloat = Field(
        default=1.0, description="channels of the inversion network, as a share of the paper's"
    )
    distance: Norm = Field(
        default="mse", description="mse: mean squared error; norm: unsquared, as the equations print"
    )
    precision: Precision = Field(
        default="tf32", description="of products on a GPU: tf32, as torch's own convolutions there, or float32, slower"
    )
    round: RoundNumber = Field(default=-1, description="the last attacked round, from 1; negative counts from the end")
    snapshots: NonNegativeInt = Field(default=0, description="of how many of the last rounds pictures are kept to draw")
    renormalise: bool = Field(
        default=False, description="take probabilities that do not sum to one as scores: cut below 0 and divide"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        return filled(cls.PRESETS, given, "")

    def shared(self) -> dict[str, Any]:
        """The shared fields in the words of the engine's recipe."""
        return {
            "tau": self.tau,
            "epochs": self.steps,
            "lr": self.lr,
            "weight_decay": self.weight_decay,
            "batch_size": self.batch_size,
            "width": self.width,
            "distance": self.distance,
            "precision": self.precision,
            "restarts": self.restarts,
            "round": self.round,
            "snapshots": self.snapshots,
            "renormalise": self.renormalise,
        }
