"""What a client may do to its predictions before it sends them: say less than the model knows.

None of these draws noise and none proves anything: each is a function of the prediction, and behind a proven defense
it is post-processing. They act on probabilities. Logits go through their softmax and come back as its logarithm, where
a probability below `FLOOR` counts as `FLOOR`: the logarithm of a dropped class would be minus infinity.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from fedleak.components import component
from fedleak.defenses.base import Context, Plan, Stage
from fedleak.defenses.empirical import Empirical, predictions_of
from fedleak.learning.simplex import onto_simplex, raw_probabilities
from fedleak.types import Payload, Predictions

__all__ = ["FLOOR", "LabelOnly", "Round", "Temperature", "TopK"]

FLOOR = 1e-4
"""The smallest probability that has a logit here: -9.2."""


@component
class Round(Empirical):
    """Rounds every number sent to `decimals` places. Rounded probabilities need not sum to one.

    Sees: a message of predictions.
    Needs: nothing.
    Guarantees: nothing proven; what attacks measure.
    """

    paper: ClassVar[str] = "Tramer et al. 2016 (rounding confidences)"
    revision: ClassVar[int] = 1
    stage: ClassVar[Stage | None] = "message"
    why: ClassVar[str] = "rounding is a function of the prediction and hides nothing for certain"
    decimals: NonNegativeInt = Field(le=12, description="digits behind the point that are kept")

    def apply(self, value: Payload, context: Context, rng: torch.Generator) -> Payload:
        sent = predictions_of(value, "round")
        return replace(sent, values=torch.round(sent.values, decimals=self.decimals))

    def after(self, plan: Plan) -> Plan:
        # Up to half a unit of the last digit is added to every number: neither a clip's bound nor a sum of 1 is left.
        return replace(plan, l2_bound=None, predictions=None if plan.predictions is None else "unbounded")


@component
class TopK(Empirical):
    """Keeps the `k` largest probabilities of every prediction and divides them by their sum; the others become 0.

    Sees: a message of predictions.
    Needs: nothing.
    Guarantees: nothing proven; what attacks measure.
    """

    paper: ClassVar[str] = "Tramer et al. 2016; Orekondy et al. 2019 (truncated posteriors)"
    revision: ClassVar[int] = 1
    stage: ClassVar[Stage | None] = "message"
    normalises: ClassVar[bool] = True
    why: ClassVar[str] = "the largest probabilities are a function of the prediction and hide nothing for certain"
    k: PositiveInt = Field(description="classes whose probability is sent; as many as there are, or more: all")

    def apply(self, value: Payload, context: Context, rng: torch.Generator) -> Payload:
        sent = predictions_of(value, "top_k")
        if self.k >= sent.values.shape[-1]:
            return sent
        shares = onto_simplex(raw_probabilities(sent))
        largest = shares.topk(self.k, dim=-1)
        return _sent_as(sent, onto_simplex(torch.zeros_like(shares).scatter(-1, largest.indices, largest.values)))

    def after(self, plan: Plan) -> Plan:
        return _still_probabilities(plan)


@component
class Temperature(Empirical):
    """Divides logits by `t`: above 1 predictions become flatter, below 1 sharper; of probabilities p^(1/t), normalised.

    Sees: a message of predictions.
    Needs: nothing.
    Guarantees: nothing proven: whoever knows `t` can undo it up to rounding.
    """

    paper: ClassVar[str] = "Hinton et al. 2015"
    revision: ClassVar[int] = 1
    stage: ClassVar[Stage | None] = "message"
    normalises: ClassVar[bool] = True
    why: ClassVar[str] = "a temperature can be undone by whoever knows it"
    t: float = Field(gt=0, allow_inf_nan=False, description="what logits are divided by; 1: nothing is changed")

    def apply(self, value: Payload, context: Context, rng: torch.Generator) -> Payload:
        sent = predictions_of(value, "temperature")
        if sent.scale == "logits":
            return replace(sent, values=sent.values / self.t)
        # log 0 is minus infinity, and its softmax 0 again: a class that was ruled out stays so.
        return replace(sent, values=torch.softmax(onto_simplex(sent.values).log() / self.t, dim=-1))

    def after(self, plan: Plan) -> Plan:
        return _still_probabilities(plan)


@component
class LabelOnly(Empirical):
    """Sends the most likely class and nothing else: 1 there, 0 elsewhere; of equal ones the first.

    Sees: a message of predictions.
    Needs: nothing.
    Guarantees: nothing proven; what attacks measure.
    """

    paper: ClassVar[str] = "Orekondy et al. 2019 (argmax labels)"
    revision: ClassVar[int] = 1
    stage: ClassVar[Stage | None] = "message"
    normalises: ClassVar[bool] = True
    why: ClassVar[str] = "the most likely class is a function of the prediction and hides nothing for certain"

    def apply(self, value: Payload, context: Context, rng: torch.Generator) -> Payload:
        sent = predictions_of(value, "label_only")
        chosen = sent.values.argmax(dim=-1, keepdim=True)
        return _sent_as(sent, torch.zeros_like(sent.values).scatter(-1, chosen, 1.0))

    def after(self, plan: Plan) -> Plan:
        return _still_probabilities(plan)


def _sent_as(sent: Predictions, shares: Tensor) -> Predictions:
    values = shares if sent.scale == "probabilities" else shares.clamp_min(FLOOR).log()
    return replace(sent, values=values)


def _still_probabilities(plan: Plan) -> Plan:
    """Probabilities stay probabilities; what a clip has bounded need not stay so."""
    return replace(plan, l2_bound=None)
