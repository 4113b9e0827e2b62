"""What both kinds of noise share: the options of DP on weights, and what no noise can prove."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError
from torch import Tensor

from fedleak.components import component
from fedleak.defenses.base import Guarantee, Plan
from fedleak.defenses.empirical import without_epsilon
from fedleak.defenses.layers import clipped_layers
from fedleak.defenses.payloads import map_numbers
from fedleak.defenses.stages import On
from fedleak.types import Named, Predictions

__all__ = ["OnWeights", "exactly_one", "relation", "without_bounds"]


@component
class OnWeights:
    """The options of DP on weights that both kinds of noise share; either does nothing unless it is given."""

    clip_layers: PositiveFloat | None = Field(
        default=None,
        allow_inf_nan=False,
        description="C of eq. 12: bound on the norm of each layer as it is sent; none: the layer's own, no clipping",
    )
    group: PositiveInt = Field(default=1, description="L of eq. 13: what the noised numbers are divided by")
    on: On = Field(default="message", description="the message, or every example's gradient at every local step")

    @model_validator(mode="before")
    @classmethod
    def _no_epsilon(cls, given: Any) -> Any:
        return without_epsilon(given, "follows from noise, rounds and bound; give sigma, scale or variance instead")

    @model_validator(mode="after")
    def _of_a_message(self) -> Self:
        wrong = [
            name for name, given in (("clip_layers", self.clip_layers is not None), ("group", self.group != 1)) if given
        ]
        if self.on == "gradients" and wrong:
            message = "is about the weights in a message; leave it out, or use on = 'message'"
            problem = PydanticCustomError("rule", "{message}", {"message": message})
            entries = [InitErrorDetails(type=problem, loc=(name,), input=getattr(self, name)) for name in wrong]
            raise ValidationError.from_exception_data("noise", entries)
        return self

    @property
    def changes_scale(self) -> bool:
        return self.clip_layers is not None or self.group != 1

    def noised(self, value: Any, draw: Callable[[torch.Size], Tensor]) -> Any:
        """A message: (clipped + noise) / L, eq. 13. Gradients: noise of its own for every example."""
        if self.on == "gradients":
            return {name: v + draw(v.shape).to(v) for name, v in value.items()}
        bounded = isinstance(value, Predictions) and value.scale == "probabilities"

        def change(numbers: Named) -> Named:
            # The softmax of a model that broke down is not a number, which no noise hides; zeros are within the bound.
            kept = {name: v.nan_to_num(0.0, 0.0, 0.0) for name, v in numbers.items()} if bounded else numbers
            kept = kept if self.clip_layers is None else clipped_layers(kept, self.clip_layers)
            noisy = {name: v + draw(v.shape).to(v) for name, v in kept.items()}
            return noisy if self.group == 1 else {name: v / self.group for name, v in noisy.items()}

        return map_numbers(value, change)

    def unproven(self, plan: Plan) -> Guarantee | None:
        """Why nothing can be proven, or None. Clipping layers is a projection onto a convex set: it brings neighbours
        no farther apart, but can take a single message farther from the broadcast than its bound says."""
        if self.on == "gradients":
            return Guarantee("empirical", "empirical: noise on gradients that nothing clips; use dp_sgd for a proof")
        if plan.buffers:
            return Guarantee("none", "none: the model sends buffers (running statistics) that nothing bounds or noises")
        if plan.longest() is None and plan.predictions is not None:
            return Guarantee(
                "empirical",
                "empirical: these predictions are unbounded, so no sensitivity is; send probabilities, or put a clip "
                "before the noise",
            )
        if plan.longest() is None:
            return Guarantee("none", "none: no bounded sensitivity; put a clip before the noise")
        if plan.neighbours == "add_remove" and self.clip_layers is not None:
            return Guarantee("none", "none: clip_layers unbounds what adding or removing one message changes")
        return None


def exactly_one(usual: str, own: float | None, variance: float | None) -> None:
    """The strength has two names, the kind's usual one (sigma, scale) and `variance`: either, not both."""
    if own is None and variance is None:
        key, message = usual, "is required, or variance in its place"
    elif own is not None and variance is not None:
        key, message = "variance", f"says the same as {usual}={own:g}; give exactly one of {usual} or variance"
    else:
        return
    problem = PydanticCustomError("rule", "{message}", {"message": message})
    raise ValidationError.from_exception_data("noise", [InitErrorDetails(type=problem, loc=(key,), input=variance)])


def relation(plan: Plan) -> str:
    """Between which two federations a proof speaks, in words."""
    if plan.neighbours == "replace":
        return "client level, one client's data replaced by any other of the same size"
    return "client level, one client's data or none (zeros under the same noise)"


def without_bounds(plan: Plan) -> Plan:
    """Behind noise, or weights that were rescaled, the update has no bound any more."""
    return replace(plan, l2_bound=None, predictions=None if plan.predictions is None else "unbounded")
