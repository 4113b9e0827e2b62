"""The perturbation that leads an imitator astray: adamsa.txt, section 4 and algorithm 2."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from fedleak.components import component
from fedleak.defenses.base import Context, Plan, Stage
from fedleak.defenses.empirical import Empirical, predictions_of
from fedleak.defenses.sensitivity import changes_of_gradient, last_layer_changes
from fedleak.errors import RefusedError
from fedleak.types import Payload, Predictions

__all__ = ["Directed"]


@component
class Directed(Empirical):
    """Noise on one class: the one whose noise changes the imitator's gradient most.

    For every class j a candidate p' = p + N(0, gamma) e_j is drawn; sent is the candidate with the largest change of
    the gradient of an imitator's loss, summed over the public examples (`scope` "dataset", algorithm 2) or chosen for
    each of them ("example"). The imitator is unknown: the client takes its own model before the round in its place.
    Of logits the entry j of the logits is moved, and the change of their softmax weighed.

    The paper asks for |p - p'|_b <= gamma as well, which a Gaussian does not keep: `clip` does, "example" for each
    prediction (where one entry moves, every b says the same), "dataset" for all of them together.

    Sees: a message of predictions; the client's own model before the round; the public inputs.
    Needs: that model, its network and the public set, in the context: a protocol whose clients keep a model.
    Guarantees: nothing proven. Theorem 3 is stated with sigma >= sqrt(2 ln 1.25 delta) sensitivity / epsilon, where
        1.25 / delta is meant, and bounds no sensitivity; which class is noised depends on the data.
    """

    paper: ClassVar[str] = (
        "Quantifying and Defending against the Privacy Risk in Logit-based Federated Learning, section 4, algorithm 2"
    )
    revision: ClassVar[int] = 1
    stage: ClassVar[Stage | None] = "message"
    uses: ClassVar[tuple[str, ...]] = ("network", "previous", "public")
    why: ClassVar[str] = (
        "only one class is noised, which one depends on the data, and no sensitivity is bounded (theorem 3 of the "
        "paper assumes one, and prints 1.25 delta where 1.25 / delta is meant)"
    )
    gamma: float = Field(ge=0, allow_inf_nan=False, description="variance of the noise: sigma is its square root")
    scope: Literal["dataset", "example"] = Field(
        default="dataset", description="one class for the whole public set, or one for each example"
    )
    a: float = Field(
        default=2.0, ge=1, allow_inf_nan=True, description="norm of the change of the gradient; inf: its largest entry"
    )
    b: float = Field(default=1.0, ge=1, description="norm of the perturbation, for clip = 'dataset'")
    clip: Literal["none", "example", "dataset"] = Field(
        default="none", description="scale the perturbation down to norm gamma: of each prediction, or of all together"
    )
    layers: Literal["all", "last"] = Field(
        default="all", description="gradient of the whole imitator, or of its last bias (one forward pass)"
    )
    sample: PositiveInt | None = Field(
        default=None, description="public examples that scope = 'dataset' is decided on; none: all"
    )

    def apply(self, value: Payload, context: Context, rng: torch.Generator) -> Payload:
        sent = predictions_of(value, "directed")
        shape = sent.values.shape
        noise = (math.sqrt(self.gamma) * torch.randn(shape, generator=rng)).to(sent.values)
        if self.clip == "example":
            noise = noise.clamp(-self.gamma, self.gamma)
        judged = self._judged(len(noise), rng, noise.device)
        changes = self._changes(sent, noise, judged, context)
        if self.scope == "dataset":
            chosen = changes.sum(dim=0).argmax().expand(len(noise), 1)
        else:
            chosen = changes.argmax(dim=1, keepdim=True)
        moved = torch.zeros_like(noise).scatter(1, chosen, noise.gather(1, chosen))
        if self.clip == "dataset":
            length = float(torch.linalg.vector_norm(moved.flatten(), ord=self.b))
            moved = moved * min(1.0, self.gamma / length) if length > 0 else moved
        return replace(sent, values=sent.values + moved)

    def _judged(self, count: int, rng: torch.Generator, device: torch.device) -> Tensor:
        if self.scope == "example" or self.sample is None or self.sample >= count:
            return torch.arange(count, device=device)
        return torch.randperm(count, generator=rng)[: self.sample].sort().values.to(device)

    def _changes(self, sent: Predictions, noise: Tensor, judged: Tensor, context: Context) -> Tensor:
        """(judged examples, J): what each candidate changes in the gradient of the estimated imitator."""
        network, previous, public = context.network, context.previous, context.public
        if network is None or previous is None or public is None:
            missing = ", ".join(name for name in self.uses if getattr(context, name) is None)
            raise RefusedError(
                f"directed: the context lacks {missing}; the imitator is estimated by the client's own previous model "
                "on the public set, so use a protocol whose clients keep a model (fedmd, dsfl, fedgems)"
            )
        chosen = sent.index.to(public.inputs.device)[judged.to(public.inputs.device)]
        inputs = context.normalisation.apply(public.inputs[chosen]).to(noise)
        parameters = {name: value.detach().to(noise.device) for name, value in previous.items()}
        measure = changes_of_gradient if self.layers == "all" else last_layer_changes
        moves = noise[judged]
        if sent.scale == "logits":
            before = sent.values[judged].unsqueeze(1)
            moves = torch.softmax(before + torch.diag_embed(moves), dim=-1) - torch.softmax(before, dim=-1)
        return measure(network, parameters, inputs, moves, self.a).detach()

    def after(self, plan: Plan) -> Plan:
        return replace(plan, l2_bound=None, predictions=None if plan.predictions is None else "unbounded")
