"""Noise on what is sent: Gaussian and Laplace, fresh for every message.

FedSGD: on the gradient. FedAvg: on the weights, which is the same as noise on the update. Predictions: on the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedleak.components import component
from fedleak.defenses.accounting import gaussian_epsilon, laplace_epsilon
from fedleak.defenses.base import Context, Guarantee, Plan, Stage
from fedleak.defenses.payloads import map_numbers
from fedleak.types import Payload

__all__ = ["Gaussian", "Laplace"]


def _noised(payload: Payload, draw: Callable[[torch.Size], Tensor]) -> Payload:
    return map_numbers(payload, lambda numbers: {name: v + draw(v.shape).to(v) for name, v in numbers.items()})


def _unbounded(plan: Plan) -> Guarantee | None:
    if plan.buffers:
        return Guarantee("none", "none: the model sends buffers (running statistics) that nothing bounds or noises")
    if plan.l2_bound is None:
        return Guarantee("none", "none: no bounded sensitivity; put a clip before the noise")
    return None


def _relation(plan: Plan) -> str:
    if plan.neighbours == "replace":
        return "client level, one client's data replaced by any other of the same size"
    return "client level, one client's message added or removed (needs secure aggregation)"


@component
class Gaussian:
    """Adds N(0, sigma^2) to every number sent.

    Sees: a message.
    Needs: nothing; a clip before it for a proof.
    Guarantees: behind a clip of norm C, client-level (epsilon, delta) by the analytic Gaussian mechanism with
        sensitivity 2C (replace one) or C (add or remove one), composed exactly over the rounds; else none.
    """

    paper: ClassVar[str] = "dlm.txt, section 5.4; Balle and Wang 2018"
    revision: ClassVar[int] = 1
    stage: ClassVar[Stage | None] = "message"
    sigma: float = Field(ge=0, allow_inf_nan=False, description="standard deviation of the noise on every number")

    def apply(self, value: Payload, context: Context, rng: torch.Generator) -> Payload:
        return _noised(value, lambda shape: self.sigma * torch.randn(shape, generator=rng))

    def after(self, plan: Plan) -> Plan:
        return plan if self.sigma == 0 else _noisy(plan)

    def guarantee(self, plan: Plan) -> Guarantee:
        sensitivity = plan.sensitivity()
        if sensitivity is None or self.sigma == 0:
            return _unbounded(plan) or Guarantee("none", "none: sigma=0 is no noise")
        epsilon = gaussian_epsilon(self.sigma, sensitivity, plan.delta, plan.rounds)
        once = gaussian_epsilon(self.sigma, sensitivity, plan.delta)
        statement = (
            f"({epsilon:.3g}, {plan.delta:g})-DP over {plan.rounds} round(s), {_relation(plan)}: Gaussian noise "
            f"sigma={self.sigma:g} on L2 sensitivity {sensitivity:g}, exact composition ({once:.3g} for one round)"
        )
        return Guarantee("dp", statement, epsilon, plan.delta)


@component
class Laplace:
    """Adds Laplace noise (density exp(-|x|/scale) / (2 scale), variance 2 scale^2) to every number sent.

    Sees: a message.
    Needs: nothing; a clip before it for a proof.
    Guarantees: behind a clip of norm C, client-level (epsilon, 0) from the L1 sensitivity sqrt(d) 2C of d numbers
        (replace one; sqrt(d) C for add or remove one), basic composition over the rounds; else none.
    """

    paper: ClassVar[str] = "dlm.txt, section 5.4; Dwork et al. 2006"
    revision: ClassVar[int] = 1
    stage: ClassVar[Stage | None] = "message"
    scale: float = Field(ge=0, allow_inf_nan=False, description="scale of the noise; its variance is 2 scale^2")

    def apply(self, value: Payload, context: Context, rng: torch.Generator) -> Payload:
        def draw(shape: torch.Size) -> Tensor:
            # The difference of two exponentials is Laplace, and never infinite as the logarithm of a drawn 0 would be.
            one, two = (torch.empty(shape, dtype=torch.float64).exponential_(generator=rng) for _ in range(2))
            return self.scale * (one - two)

        return _noised(value, draw)

    def after(self, plan: Plan) -> Plan:
        return plan if self.scale == 0 else _noisy(plan)

    def guarantee(self, plan: Plan) -> Guarantee:
        sensitivity = plan.sensitivity()
        if sensitivity is None or self.scale == 0:
            return _unbounded(plan) or Guarantee("none", "none: scale=0 is no noise")
        widest = sensitivity * math.sqrt(plan.dimension)
        epsilon = laplace_epsilon(self.scale, widest, plan.rounds)
        statement = (
            f"({epsilon:.3g}, 0)-DP over {plan.rounds} round(s), {_relation(plan)}: Laplace noise scale={self.scale:g} "
            f"on L1 sensitivity {widest:.3g} = sqrt({plan.dimension}) x {sensitivity:g}, basic composition"
        )
        return Guarantee("dp", statement, epsilon, 0.0)


def _noisy(plan: Plan) -> Plan:
    """Behind noise the update has no bound any more."""
    return replace(plan, l2_bound=None)
