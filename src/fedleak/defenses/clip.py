"""Clipping: no message may change the model by more than a fixed length."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator

from fedleak.components import component
from fedleak.defenses.base import Context, Guarantee, Plan, Stage
from fedleak.defenses.empirical import PROVEN, without_epsilon
from fedleak.defenses.payloads import global_norm, map_update, update_of
from fedleak.types import Payload

__all__ = ["Clip"]


@component
class Clip:
    """Scales an update whose L2 norm over all parameters exceeds `norm` down to it.

    The update is the gradient (FedSGD) or sent - broadcast (FedAvg): what the client says about its data. The
    weight-leakage paper (eq. 12) clips each layer of the *weights* instead, which does not bound the update.
    An update that holds a number that is not finite has no norm to scale by and is sent as zeros: else whoever's
    training broke down would be told from the others through any noise.

    Sees: a message; the broadcast weights.
    Needs: the broadcast, where the message holds weights.
    Guarantees: nothing by itself; it bounds what noise behind it has to hide.
    """

    paper: ClassVar[str] = "McMahan et al. 2018 (flat clipping of a client's update)"
    revision: ClassVar[int] = 2
    stage: ClassVar[Stage | None] = "message"
    norm: float = Field(gt=0, allow_inf_nan=False, description="largest L2 norm of the whole update")

    @model_validator(mode="before")
    @classmethod
    def _no_epsilon(cls, given: Any) -> Any:
        return without_epsilon(given, f"clipping alone proves no differential privacy; {PROVEN} behind it")

    def apply(self, value: Payload, context: Context, rng: torch.Generator) -> Payload:
        length = global_norm(update_of(value, context))
        if length <= self.norm:
            return value
        if not math.isfinite(length):
            return map_update(value, context, lambda update: {n: torch.zeros_like(v) for n, v in update.items()})
        factor = self.norm / length
        return map_update(value, context, lambda update: {name: factor * v for name, v in update.items()})

    def after(self, plan: Plan) -> Plan:
        bound = self.norm if plan.l2_bound is None else min(self.norm, plan.l2_bound)
        return replace(plan, l2_bound=bound)

    def guarantee(self, plan: Plan) -> Guarantee:
        return Guarantee("none", f"none: clipping to norm {self.norm:g} alone hides nothing for certain")
