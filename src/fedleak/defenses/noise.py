"""Noise on what is sent: Gaussian and Laplace, fresh for every message.

FedSGD: on the gradient. FedAvg: on the weights, which is the same as noise on the update. Predictions: on the values.
With `on="gradients"` it is on the gradient of every single example, fresh at every local step, as in appendix B of the
FedAvg leakage paper: nothing is clipped there, so nothing is proven (`dp_sgd` clips).

The weight-leakage paper's DP on weights (eq. 12, 13) is the same noise with two options: `clip_layers` (its C) and
`group` (its L). Both default to what leaves the weights as they are: the text names no value, and any other rescales
the weights and so drowns the update.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError
from torch import Tensor

from fedleak.components import component
from fedleak.defenses.accounting import gaussian_epsilon, laplace_epsilon, upward, worth
from fedleak.defenses.base import Context, Guarantee, Plan, Stage
from fedleak.defenses.empirical import without_epsilon
from fedleak.defenses.layers import clipped_layers
from fedleak.defenses.payloads import map_numbers
from fedleak.defenses.stages import On, stage_of_choice
from fedleak.types import Named

__all__ = ["Gaussian", "Laplace"]


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

        def change(numbers: Named) -> Named:
            kept = numbers if self.clip_layers is None else clipped_layers(numbers, self.clip_layers)
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


def _exactly_one(usual: str, own: float | None, variance: float | None) -> None:
    if own is None and variance is None:
        key, message = usual, "is required, or variance in its place"
    elif own is not None and variance is not None:
        key, message = "variance", f"says the same as {usual}={own:g}; give exactly one of {usual} or variance"
    else:
        return
    problem = PydanticCustomError("rule", "{message}", {"message": message})
    raise ValidationError.from_exception_data("noise", [InitErrorDetails(type=problem, loc=(key,), input=variance)])


def _relation(plan: Plan) -> str:
    if plan.neighbours == "replace":
        return "client level, one client's data replaced by any other of the same size"
    return "client level, one client's data or none (zeros under the same noise)"


@component
class Gaussian(OnWeights):
    """Adds N(0, sigma^2) to every number sent; with `clip_layers` = C it is eq. 13's N(0, (sigma C)^2).

    `variance` is the other way to give the strength, and the one that the paper's figures are labelled with: the
    variance of the noise itself, whatever C is.

    Sees: a message; with on="gradients" the gradients of the single examples of one step.
    Needs: nothing; a clip before it for a proof.
    Guarantees: behind a clip of norm C, client-level (epsilon, delta) by the analytic Gaussian mechanism with
        sensitivity 2C (replace one) or C (one or none), composed exactly over the rounds. On probabilities (DP-G
        of AdaMSA's paper) without a clip too: n predictions move by at most sqrt(2n). Else none.
    """

    paper: ClassVar[str] = "Deep Leakage from Model in Federated Learning, section 5.4; Balle and Wang 2018"
    revision: ClassVar[int] = 1
    stage: ClassVar[Stage | None] = stage_of_choice("message")
    sigma: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="standard deviation of the noise on every number; with clip_layers in units of C",
    )
    variance: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="or: variance of the noise")

    @model_validator(mode="after")
    def _one_strength(self) -> Self:
        _exactly_one("sigma", self.sigma, self.variance)
        return self

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on every number, before the division by the group size."""
        if self.variance is not None:
            return math.sqrt(self.variance)
        return (self.sigma or 0.0) * (1.0 if self.clip_layers is None else self.clip_layers)

    def apply(self, value: Any, context: Context, rng: torch.Generator) -> Any:
        return self.noised(value, lambda shape: self.deviation * torch.randn(shape, generator=rng))

    def after(self, plan: Plan) -> Plan:
        # Noise inside the local steps is there before a clip of the message is.
        return plan if self.on == "gradients" or not (self.deviation or self.changes_scale) else _noisy(plan)

    def guarantee(self, plan: Plan) -> Guarantee:
        sensitivity = plan.sensitivity()
        if (unproven := self.unproven(plan)) is not None or sensitivity is None:
            return unproven or Guarantee("none", "none: no bounded sensitivity")
        if self.deviation == 0:
            return Guarantee("none", "none: sigma=0 is no noise")
        epsilon = gaussian_epsilon(self.deviation, sensitivity, plan.delta, plan.rounds)
        once = gaussian_epsilon(self.deviation, sensitivity, plan.delta)
        statement = (
            f"({upward(epsilon)}, {plan.delta:g})-DP over {plan.rounds} round(s), {_relation(plan)}: Gaussian noise "
            f"sigma={self.deviation:g} on L2 sensitivity {sensitivity:g}, exact composition ({upward(once)} for one "
            f"round){worth(epsilon)}"
        )
        return Guarantee("dp", statement, epsilon, plan.delta)


@component
class Laplace(OnWeights):
    """Adds Laplace noise (density exp(-|x|/scale) / (2 scale), variance 2 scale^2) to every number sent.

    `clip_layers`, `group` and `variance` are as for Gaussian noise.

    Sees: a message; with on="gradients" the gradients of the single examples of one step.
    Needs: nothing; a clip before it for a proof.
    Guarantees: behind a clip of norm C, client-level (epsilon, 0) from the L1 sensitivity sqrt(d) 2C of d numbers
        (replace one; sqrt(d) C for one or none), basic composition over the rounds. On probabilities (DP-L of
        AdaMSA's paper) without a clip too: n predictions move by at most 2n. Else none.
    """

    paper: ClassVar[str] = "Deep Leakage from Model in Federated Learning, section 5.4; Dwork et al. 2006"
    revision: ClassVar[int] = 1
    stage: ClassVar[Stage | None] = stage_of_choice("message")
    scale: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="scale of the noise, whose variance is 2 scale^2; with clip_layers in units of C",
    )
    variance: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="or: variance of the noise")

    @model_validator(mode="after")
    def _one_strength(self) -> Self:
        _exactly_one("scale", self.scale, self.variance)
        return self

    @property
    def spread(self) -> float:
        """Scale of the noise on every number, before the division by the group size."""
        if self.variance is not None:
            return math.sqrt(self.variance / 2)
        return (self.scale or 0.0) * (1.0 if self.clip_layers is None else self.clip_layers)

    def apply(self, value: Any, context: Context, rng: torch.Generator) -> Any:
        def draw(shape: torch.Size) -> Tensor:
            # The difference of two exponentials is Laplace, and never infinite as the logarithm of a drawn 0 would be.
            one, two = (torch.empty(shape, dtype=torch.float64).exponential_(generator=rng) for _ in range(2))
            return self.spread * (one - two)

        return self.noised(value, draw)

    def after(self, plan: Plan) -> Plan:
        return plan if self.on == "gradients" or not (self.spread or self.changes_scale) else _noisy(plan)

    def guarantee(self, plan: Plan) -> Guarantee:
        sensitivity = plan.sensitivity()
        if (unproven := self.unproven(plan)) is not None or sensitivity is None:
            return unproven or Guarantee("none", "none: no bounded sensitivity")
        if self.spread == 0:
            return Guarantee("none", "none: scale=0 is no noise")
        widest = plan.l1_sensitivity()
        if widest is None:
            return Guarantee("none", "none: the plan does not say how many numbers a message holds (dimension)")
        epsilon = laplace_epsilon(self.spread, widest, plan.rounds)
        statement = (
            f"({upward(epsilon)}, 0)-DP over {plan.rounds} round(s), {_relation(plan)}: Laplace noise "
            f"scale={self.spread:g} on L1 sensitivity {widest:.3g} {_basis(plan, sensitivity, widest)}basic composition"
            f"{worth(epsilon)}"
        )
        return Guarantee("dp", statement, epsilon, 0.0)


def _basis(plan: Plan, sensitivity: float, widest: float) -> str:
    """Where an L1 sensitivity comes from: the norm of the whole, or probability vectors one by one."""
    if plan.dimension is not None and widest == sensitivity * math.sqrt(plan.dimension):
        return f"= sqrt({plan.dimension}) x {sensitivity:g}, "
    return f"({widest / plan.examples:g} for each of {plan.examples} predictions), "


def _noisy(plan: Plan) -> Plan:
    """Behind noise, or weights that were rescaled, the update has no bound any more."""
    return replace(plan, l2_bound=None, predictions=None if plan.predictions is None else "unbounded")
