"""Networks as pure functions of their parameters: what federation and attacks both build on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedleak.errors import RefusedError
from fedleak.types import Named

__all__ = ["LOSSES", "Loss", "Network", "accuracy", "explained", "loss_named", "predict"]

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs (n, classes), targets) to a scalar mean; targets are class indices (n,) or probabilities (n, classes)."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy. Written out for soft targets: the fused kernel has no forward-over-reverse there."""
    if targets.dtype.is_floating_point:
        return -(targets * F.log_softmax(outputs, dim=-1)).sum(dim=-1).mean()
    return F.cross_entropy(outputs, targets)


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy}


def loss_named(name: str) -> Loss:
    if name not in LOSSES:
        raise RefusedError(f"loss={name!r}: fedleak knows {', '.join(sorted(LOSSES))}")
    return LOSSES[name]


@dataclass(frozen=True, eq=False)
class Network:
    """A module as a pure function. The module's own parameters and buffers are never touched after construction.

    `parameters` may name buffers too (BatchNorm statistics); what it leaves out is read from the module.
    """

    module: nn.Module

    def initial(self) -> dict[str, Tensor]:
        """The module's parameters, detached copies, in the order of named_parameters()."""
        return {name: value.detach().clone() for name, value in self.module.named_parameters()}

    def buffers(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.module.named_buffers()}

    def __call__(self, parameters: Named, inputs: Tensor) -> Tensor:
        try:
            outputs: Tensor = functional_call(self.module, {**self.buffers(), **parameters}, (inputs,))
        except ValueError as problem:
            raise explained(problem) from None
        if not isinstance(outputs, Tensor):
            raise RefusedError(
                f"the network gives a {type(outputs).__name__} for a batch of pictures; return one tensor of class "
                "scores alone, (n, classes)"
            )
        return outputs


def explained(problem: ValueError) -> Exception:
    """In words with a way out, where a normalisation refuses a batch of one number a channel; else the problem."""
    if "Expected more than 1 value per channel" not in str(problem):
        return problem
    return RefusedError(
        "the network: a batch normalisation has one number a channel in a step of one picture, and no variance; let no "
        "batch, the last of an epoch included, hold one picture (batch_size, public_batch_size, examples), or use "
        "another normalisation (LayerNorm, GroupNorm)"
    )


def predict(network: Network, parameters: Named, inputs: Tensor, batch_size: int = 1024) -> Tensor:
    """Outputs for model inputs, without gradients, in batches."""
    with torch.no_grad():
        return torch.cat([network(parameters, part) for part in torch.split(inputs, batch_size)])


def accuracy(network: Network, parameters: Named, inputs: Tensor, labels: Tensor) -> Tensor:
    """One 0/1 per example: was the most likely class the right one?"""
    return (predict(network, parameters, inputs).argmax(dim=-1) == labels).to(torch.float32)
