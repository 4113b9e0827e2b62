"""The fields that every inversion recipe shares, and how a preset fills them in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from fedleak.attacks.inversion.adam import Adam
from fedleak.attacks.inversion.distances import Distance, JointDistance
from fedleak.attacks.inversion.engine import Recipe
from fedleak.attacks.inversion.labels import LabelRule
from fedleak.attacks.inversion.lbfgs import LBFGS
from fedleak.attacks.inversion.priors import TotalVariation
from fedleak.attacks.inversion.search import Rules
from fedleak.components import RoundNumber, component, filled

__all__ = ["BATCH", "ONE_START", "PAPER", "PAPER_MLP", "TORCH_TOLERANCES", "InversionSettings", "Preset"]

Preset = Literal["strong", "paper", "paper_mlp", "one_start"]

PAPER: Mapping[str, Any] = {
    "steps": 200,
    "restarts": 0,
    "optimizer": "lbfgs",
    "lr": 1.0,
    "history": 100,
    "max_step": 0.0,
    "spread": 1.0,
    "candidates": 1,
    "patience": 0,
    "goal": 0.0,
}
"""dlm.txt section 5 for LeNet: L-BFGS (torch's 20 inner iterations), lr 1, history 100, 200 iterations, one start."""

PAPER_MLP: Mapping[str, Any] = {**PAPER, "steps": 4000, "optimizer": "adam", "lr": 0.1}
"""dlm.txt section 5 for the MLP: Adam, lr 0.1, 4000 iterations, one start."""

TORCH_TOLERANCES: Mapping[str, Any] = {"tolerance_grad": 1e-7, "tolerance_change": 1e-9}
"""What torch.optim.LBFGS does when it is told nothing."""

ONE_START: Mapping[str, Any] = {**PAPER, "tolerance_curvature": 0.0}
"""The paper's search without any of torch's absolute thresholds, as DLM+ has it in "paper": for a comparison of
objectives, since a threshold ends the search on one scale of the objective and not on another."""

BATCH: Mapping[str, Any] = {"steps": 300, "restarts": 0, "tv": 1e-6}
"""dlm.txt A.4: four images at once, about 300 iterations, a term for total variation; its weight is not given there.

DLM+ on four faces at 32x32: 48 to 52 dB with 1e-6, 42 to 44 with 1e-5, 35 to 37 with 1e-4."""


@component
class InversionSettings:
    """Settings of the search. The defaults are the preset "strong"; values that are given win over a preset."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    preset: str = "strong"
    """Each recipe names its own."""
    steps: PositiveInt = Field(default=200, description="outer iterations of one start")
    restarts: NonNegativeInt = Field(default=2, description="fresh starts for a victim whose goal was not reached")
    optimizer: Literal["lbfgs", "adam"] = Field(default="lbfgs", description="how the dummies are improved")
    lr: PositiveFloat = Field(default=1.0, description="step length of the optimiser")
    history: PositiveInt = Field(default=100, description="pairs that L-BFGS remembers")
    inner: PositiveInt = Field(default=20, description="L-BFGS iterations in one outer iteration")
    tolerance_grad: NonNegativeFloat = Field(default=0.0, description="a slope below this ends a start; torch: 1e-7")
    tolerance_change: NonNegativeFloat = Field(
        default=0.0, description="a change below this ends an outer iteration of L-BFGS; torch: 1e-9"
    )
    tolerance_curvature: NonNegativeFloat = Field(
        default=1e-10, description="L-BFGS forgets a step that shows no more curvature than this; torch: 1e-10"
    )
    max_step: NonNegativeFloat = Field(
        default=0.2, description="bound on the root mean square of an L-BFGS step; 0: none, as torch"
    )
    spread: PositiveFloat = Field(default=0.3, description="standard deviation of the first dummy images")
    candidates: PositiveInt = Field(
        default=32, description="starts drawn for every attempt; the one with the smallest objective is taken"
    )
    goal: NonNegativeFloat = Field(
        default=1e-8,
        description="solved when the squared distance is this share of the update's squared norm; 0: never",
    )
    patience: NonNegativeInt = Field(
        default=8, description="outer iterations without enough progress after which a start is given up; 0: never"
    )
    min_progress: float = Field(
        default=0.05, ge=0, lt=1, description="enough progress: the objective fell by this share within `patience`"
    )
    enough: float = Field(
        default=1000.0, ge=1, description="no fresh start for a victim that came within this many times the goal"
    )
    agreement: NonNegativeFloat = Field(
        default=0.1, description="no further start once the objectives of two starts ended this close, as a share"
    )
    labels: LabelRule = Field(
        default="joint",
        description="joint: search soft labels along; raw: without softmax; idlg, yin, llg: read off the last layer",
    )
    tv: NonNegativeFloat = Field(default=0.0, description="weight of the total variation beside the distance")
    tv_norm: Literal["squared", "absolute"] = Field(default="squared", description="differences of neighbours")
    signed: bool = Field(default=False, description="Adam on the signs of the slope")
    decay: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(
        default=(), description="shares of the steps after which Adam's step length falls to a tenth"
    )
    clamp: bool = Field(default=False, description="move pixels into their range after every step of Adam")
    round: RoundNumber = Field(default=1, description="the attacked round, from 1; negative counts from the end")
    snapshots: NonNegativeInt = Field(default=8, description="pictures kept of the way to the result")
    chunk: PositiveInt = Field(default=64, description="starts that are searched at once")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        return filled(cls.PRESETS, given, "strong")

    @model_validator(mode="after")
    def _adams_own(self) -> Self:
        """L-BFGS knows its steps from the slopes at both ends: it can take neither signs nor a move into a box."""
        for name in ("signed", "decay", "clamp"):
            if getattr(self, name) and self.optimizer != "adam":
                raise ValueError(f"{name}={getattr(self, name)}: works with optimizer='adam' only")
        return self

    def make_optimiser(self) -> LBFGS | Adam:
        if self.optimizer == "adam":
            milestones = tuple(round(share * self.steps) for share in self.decay)
            return Adam(lr=self.lr, tolerance_grad=self.tolerance_grad, signed=self.signed, milestones=milestones)
        return LBFGS(
            lr=self.lr,
            history=self.history,
            inner=self.inner,
            tolerance_grad=self.tolerance_grad,
            tolerance_change=self.tolerance_change,
            tolerance_curvature=self.tolerance_curvature,
            max_step=self.max_step,
        )

    def make_rules(self) -> Rules:
        return Rules(self.steps, self.restarts, self.patience, self.min_progress, self.agreement, self.enough)

    def make_recipe(self, distance: Distance | JointDistance, factor: float = 1.0, **more: Any) -> Recipe:
        """The recipe with this distance; `factor` is what the distance multiplies its objective by, hence the prior."""
        settings: dict[str, Any] = {
            "optimiser": self.make_optimiser(),
            "rules": self.make_rules(),
            "labels": self.labels,
            "prior": TotalVariation(factor * self.tv, self.tv_norm) if self.tv > 0 else None,
            "goal": self.goal,
            "spread": self.spread,
            "candidates": self.candidates,
            "round": self.round,
            "snapshots": self.snapshots,
            "chunk": self.chunk,
            "clamp": self.clamp,
        }
        return Recipe(distance=distance, **{**settings, **more})
