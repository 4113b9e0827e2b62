"""Sparsification: the smallest numbers are sent as zero."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedleak.components import component
from fedleak.defenses.base import Context, Guarantee, Plan, Stage
from fedleak.defenses.empirical import PROVEN, without_epsilon
from fedleak.defenses.payloads import map_numbers, map_update
from fedleak.types import Named, Payload

__all__ = ["Sparsify"]


@component
class Sparsify:
    """Sets the smallest `fraction` of all numbers, over the whole network at once, to zero.

    `of="update"` compresses the update, as deployments do. `of="weights"` prunes the sent weights themselves, as the
    weight-leakage paper does: where a weight was pruned, the apparent update then holds that whole weight.
    `by="signed"` is the paper's literal text (what lies below the quantile of the signed value is pruned).

    Sees: a message; the broadcast weights.
    Needs: the broadcast, where the message holds weights and `of` is "update".
    Guarantees: nothing proven; what attacks measure.
    """

    paper: ClassVar[str] = "Deep Leakage from Model in Federated Learning, section 5.4 (model sparsification)"
    revision: ClassVar[int] = 1
    stage: ClassVar[Stage | None] = "message"
    fraction: float = Field(ge=0, lt=1, description="share of the numbers that becomes zero")
    of: Literal["update", "weights"] = "update"
    by: Literal["magnitude", "signed"] = "magnitude"

    @model_validator(mode="before")
    @classmethod
    def _no_epsilon(cls, given: Any) -> Any:
        return without_epsilon(given, f"dropping numbers proves no differential privacy; {PROVEN}")

    def apply(self, value: Payload, context: Context, rng: torch.Generator) -> Payload:
        if self.of == "weights":
            return map_numbers(value, self._thin)
        return map_update(value, context, self._thin)

    def _thin(self, numbers: Named) -> dict[str, Tensor]:
        flat = torch.cat([tensor.reshape(-1) for tensor in numbers.values()])
        size = flat.abs() if self.by == "magnitude" else flat
        parts = torch.split(
            flat.masked_fill(_smallest(size, round(self.fraction * flat.numel())), 0.0),
            [tensor.numel() for tensor in numbers.values()],
        )
        return {name: part.reshape(tensor.shape) for (name, tensor), part in zip(numbers.items(), parts, strict=True)}

    def after(self, plan: Plan) -> Plan:
        # Fewer numbers cannot make the update longer, but pruned weights put the weights themselves into the update.
        return plan if self.of == "update" else replace(plan, l2_bound=None)

    def guarantee(self, plan: Plan) -> Guarantee:
        return Guarantee("empirical", f"empirical: {self.fraction:.0%} of the {self.of} set to zero, nothing proven")


def _smallest(size: Tensor, count: int) -> Tensor:
    """A mask of exactly `count` smallest numbers; of equal ones at the border the first are taken."""
    if count == 0:
        return torch.zeros_like(size, dtype=torch.bool)
    border = size.kthvalue(count).values
    chosen = size < border
    equal = (size == border).nonzero().squeeze(1)
    chosen[equal[: count - int(chosen.sum())]] = True
    return chosen
