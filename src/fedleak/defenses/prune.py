"""Random pruning: numbers chosen by chance become zero."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedleak.components import component
from fedleak.defenses.base import Context, Guarantee, Plan, Stage
from fedleak.defenses.empirical import PROVEN, without_epsilon
from fedleak.defenses.payloads import map_update
from fedleak.defenses.stages import On, stage_of_choice
from fedleak.types import Named

__all__ = ["Prune"]


@component
class Prune:
    """Sets each number to zero with probability `fraction`, independently, and keeps the others as they are.

    As in the FedAvg leakage paper's appendix B the kept numbers are not scaled up, so the update shrinks on average.
    It acts on the gradient of every example at every local step, with a fresh choice each time; `on="message"` acts
    once, on the update that is sent.

    Sees: the gradients of the single examples of one step; or a message and the broadcast weights.
    Needs: a module whose examples do not mix (no BatchNorm); for a message that holds weights, the broadcast.
    Guarantees: nothing proven; what attacks measure.
    """

    paper: ClassVar[str] = "Data Leakage in Federated Averaging, appendix B; Zhu et al. 2019"
    revision: ClassVar[int] = 1
    stage: ClassVar[Stage | None] = stage_of_choice("gradients")
    fraction: float = Field(ge=0, le=1, description="probability that a number becomes zero")
    on: On = Field(default="gradients", description="every example's gradient at every local step, or the message")

    @model_validator(mode="before")
    @classmethod
    def _no_epsilon(cls, given: Any) -> Any:
        return without_epsilon(given, f"dropping numbers proves no differential privacy; {PROVEN}")

    def apply(self, value: Any, context: Context, rng: torch.Generator) -> Any:
        def thin(numbers: Named) -> dict[str, Tensor]:
            kept = {name: torch.rand(v.shape, generator=rng) >= self.fraction for name, v in numbers.items()}
            return {name: v * kept[name].to(v) for name, v in numbers.items()}

        return thin(value) if self.on == "gradients" else map_update(value, context, thin)

    def after(self, plan: Plan) -> Plan:
        return plan  # zeros in place of numbers make no update longer

    def guarantee(self, plan: Plan) -> Guarantee:
        where = "every example's gradient" if self.on == "gradients" else "the update"
        return Guarantee("empirical", f"empirical: {self.fraction:.0%} of {where} zeroed by chance, nothing proven")
