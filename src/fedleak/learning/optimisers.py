"""How one network's weights are improved: torch's own kernels for Adam and SGD, on a CPU and in a CUDA graph.

The functions behind torch.optim are called directly: the classes import torch's compiler, which takes seconds in every
worker process, and change the tensors of their state when it is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

__all__ = ["Optimiser", "Rule"]


@dataclass(frozen=True)
class Rule:
    """torch.optim.Adam or torch.optim.SGD with these settings; weight decay is torch's L2 term, not decoupled."""

    kind: Literal["adam", "sgd"]
    lr: float
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    momentum: float = 0.0


class Optimiser:
    """The moments of one network. All is changed in place, so that a CUDA graph can replay a step."""

    def __init__(self, rule: Rule, parameters: Sequence[Tensor]) -> None:
        self._rule, self._parameters = rule, [parameter.detach() for parameter in parameters]
        zeros = [torch.zeros_like(parameter) for parameter in self._parameters]
        kinds = 2 if rule.kind == "adam" else 1 if rule.momentum else 0
        self._moments = [[value.clone() for value in zeros] for _ in range(kinds)]
        self._steps = [torch.zeros((), device=parameter.device) for parameter in self._parameters]

    @torch.no_grad()
    def step(self, slopes: Sequence[Tensor]) -> None:
        """One step along these gradients."""
        rule, like = self._rule, self._parameters[0]
        # The fused kernels walk through memory: a transposed gradient would silently be read in the wrong order.
        slopes = [slope.contiguous() for slope in slopes]
        if rule.kind == "sgd":
            # A velocity of zeros to begin with makes the first one the gradient, as torch's does without dampening.
            velocities = self._moments[0] if rule.momentum else [None] * len(slopes)
            sgd(
                self._parameters,
                slopes,
                velocities,  # type: ignore[arg-type]
                fused=True,
                weight_decay=rule.weight_decay,
                momentum=rule.momentum,
                lr=rule.lr,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
            return
        adam(
            self._parameters,
            list(slopes),
            self._moments[0],
            self._moments[1],
            [],
            self._steps,
            fused=True,
            capturable=like.is_cuda,
            amsgrad=False,
            beta1=rule.betas[0],
            beta2=rule.betas[1],
            lr=rule.lr,
            weight_decay=rule.weight_decay,
            eps=rule.epsilon,
            maximize=False,
        )

    def state(self) -> dict[str, Any]:
        """The moments and the steps that made them: the tensors themselves."""
        return {"moments": self._moments, "steps": self._steps}

    def load(self, state: dict[str, Any]) -> None:
        """Put back what `state` gave, into the tensors that are there."""
        for own, given in zip([*self._moments, self._steps], [*state["moments"], state["steps"]], strict=True):
            for mine, theirs in zip(own, given, strict=True):
                mine.copy_(theirs)

    def forget(self) -> None:
        """As new."""
        for own in [*self._moments, self._steps]:
            for value in own:
                value.zero_()
