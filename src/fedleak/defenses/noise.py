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
from typing import Any, ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedleak.components import component
from fedleak.defenses.accounting import gaussian_epsilon, laplace_epsilon, upward, worth
from fedleak.defenses.base import Context, Guarantee, Plan, Stage
from fedleak.defenses.noise_base import OnWeights, exactly_one, relation, without_bounds
from fedleak.defenses.stages import stage_of_choice

__all__ = ["Gaussian", "Laplace"]


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
    revision: ClassVar[int] = 2
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
        exactly_one("sigma", self.sigma, self.variance)
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
        return plan if self.on == "gradients" or not (self.deviation or self.changes_scale) else without_bounds(plan)

    def guarantee(self, plan: Plan) -> Guarantee:
        sensitivity = plan.sensitivity()
        if (unproven := self.unproven(plan)) is not None or sensitivity is None:
            return unproven or Guarantee("none", "none: no bounded sensitivity")
        if self.deviation == 0:
            return Guarantee("none", "none: sigma=0 is no noise")
        epsilon = gaussian_epsilon(self.deviation, sensitivity, plan.delta, plan.rounds)
        once = gaussian_epsilon(self.deviation, sensitivity, plan.delta)
        statement = (
            f"({upward(epsilon)}, {plan.delta:g})-DP over {plan.rounds} round(s), {relation(plan)}: Gaussian noise "
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
    revision: ClassVar[int] = 2
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
        exactly_one("scale", self.scale, self.variance)
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
        return plan if self.on == "gradients" or not (self.spread or self.changes_scale) else without_bounds(plan)

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
            f"({upward(epsilon)}, 0)-DP over {plan.rounds} round(s), {relation(plan)}: Laplace noise "
            f"scale={self.spread:g} on L1 sensitivity {widest:.3g} {_basis(plan, sensitivity, widest)}basic composition"
            f"{worth(epsilon)}"
        )
        return Guarantee("dp", statement, epsilon, 0.0)


def _basis(plan: Plan, sensitivity: float, widest: float) -> str:
    """Where an L1 sensitivity comes from: the norm of the whole, or probability vectors one by one."""
    if plan.dimension is not None and widest == sensitivity * math.sqrt(plan.dimension):
        return f"= sqrt({plan.dimension}) x {sensitivity:g}, "
    return f"({widest / plan.examples:g} for each of {plan.examples} predictions), "
