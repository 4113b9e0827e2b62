"""DP-SGD: every example's gradient is clipped, and noise goes onto their sum, in each local step."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedleak.components import component
from fedleak.defenses.accounting import gaussian_epsilon, upward, worth
from fedleak.defenses.base import Context, Guarantee, Plan, Stage
from fedleak.defenses.empirical import without_epsilon
from fedleak.types import Named

__all__ = ["DPSGD"]


@component
class DPSGD:
    """Clips each example's gradient to `max_grad_norm` and adds N(0, (noise_multiplier max_grad_norm)^2) to the sum.

    The names are those of Opacus, whose step this is (algorithm 1 of the paper). Batches here are dealt out without
    replacement, not by Poisson sampling, so no amplification by sampling is claimed: an example is in one step of
    every pass over the data, and that step is one release of the Gaussian mechanism. `fedleak.integrations.opacus`
    trains with Poisson sampling and Opacus' own accountant. A gradient that is not finite counts as zeros: no factor
    bounds it, and it would show through the noise.

    Sees: the gradients of the single examples of one step.
    Needs: a module whose examples do not mix (no BatchNorm).
    Guarantees: example-level (epsilon, delta): with sensitivity 2 max_grad_norm (one example replaced by another) or
        max_grad_norm (its gradient left out), composed exactly over rounds and local epochs; none where the plan does
        not say how many local epochs there are, where buffers are sent, or where predictions are.
    """

    paper: ClassVar[str] = "Abadi et al. 2016, Deep Learning with Differential Privacy"
    revision: ClassVar[int] = 2
    stage: ClassVar[Stage | None] = "gradients"
    noise_multiplier: float = Field(
        ge=0, allow_inf_nan=False, description="standard deviation of the noise as a multiple of max_grad_norm"
    )
    max_grad_norm: float = Field(gt=0, allow_inf_nan=False, description="largest L2 norm of one example's gradient")

    @model_validator(mode="before")
    @classmethod
    def _no_epsilon(cls, given: Any) -> Any:
        return without_epsilon(given, "follows from the noise and the number of steps; give noise_multiplier instead")

    def apply(self, value: Named, context: Context, rng: torch.Generator) -> dict[str, Tensor]:
        count = len(next(iter(value.values())))
        squares = sum(v.detach().to(torch.float64).flatten(1).square().sum(dim=1) for v in value.values())
        assert isinstance(squares, Tensor)
        scale = (self.max_grad_norm / squares.sqrt().clamp_min(1e-12)).clamp_max(1.0)
        finite = torch.isfinite(squares)
        changed = {}
        for name, each in value.items():
            column = (-1, *[1] * (each.ndim - 1))
            clipped = torch.where(finite.reshape(column), each * scale.to(each).reshape(column), 0.0)
            noise = torch.randn(each.shape[1:], generator=rng) * (self.noise_multiplier * self.max_grad_norm)
            # The mean over examples is used: with a share of 1 / count for each, the sum gets the noise once.
            changed[name] = clipped + noise.to(each) / count
        return changed

    def after(self, plan: Plan) -> Plan:
        return plan

    def guarantee(self, plan: Plan) -> Guarantee:
        if plan.predictions is not None:
            return Guarantee(
                "none",
                "none: where predictions are sent clients also learn from each other's, and before the first round, "
                "which this proof does not count; put noise on the predictions",
            )
        if plan.buffers:
            return Guarantee("none", "none: the model sends buffers (running statistics) that nothing bounds or noises")
        if self.noise_multiplier == 0:
            return Guarantee("none", "none: noise_multiplier=0 is no noise")
        replaced = plan.neighbours == "replace"
        sensitivity = 2.0 if replaced else 1.0
        once = gaussian_epsilon(self.noise_multiplier, sensitivity, plan.delta)
        epochs = plan.epochs
        if epochs is None:
            return Guarantee(
                "none",
                f"none stated: ({upward(once)}, {plan.delta:g})-DP at example level for one local epoch, but the "
                "plan does not say how many there are",
            )
        uses = plan.rounds * epochs
        epsilon = gaussian_epsilon(self.noise_multiplier, sensitivity, plan.delta, uses)
        relation = "one example replaced by another" if replaced else "one example's gradient left out"
        statement = (
            f"({upward(epsilon)}, {plan.delta:g})-DP over {plan.rounds} round(s) of {epochs} local epoch(s), example "
            f"level, {relation}: each example is in {uses} noised step(s), exact composition ({upward(once)} for one)"
            f"{worth(epsilon)}"
        )
        return Guarantee("dp", statement, epsilon, plan.delta)
