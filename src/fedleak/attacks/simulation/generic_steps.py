"""Steps of SGD, and the way back, for any module: autograd of one step at a time, mapped over victims or one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.func import grad, vjp, vmap

from fedleak.learning.functional import Loss, Network
from fedleak.types import Named

__all__ = ["LoneSteps", "MappedSteps", "Steps"]


class Steps(Protocol):
    """One step forward and one step back for many networks (the first dimension of every tensor).

    A state is a list of tensors in a layout of its own. `share` (networks, images) is what every image has in the
    mean loss; None: all the same.
    """

    def load(self, named: Named) -> list[Tensor]:
        """A state, as tensors of its own, from tensors (networks, ...) in torch's layout."""
        ...

    def named(self, state: list[Tensor]) -> dict[str, Tensor]:
        """A state in torch's layout, in the order of the weights; may be views of it."""
        ...

    def forward(self, state: list[Tensor], inputs: Tensor, labels: Tensor, share: Tensor | None) -> list[Tensor]:
        """Moves `state` by one step in place and gives what `backward` needs of it."""
        ...

    def backward(
        self,
        state: list[Tensor],
        adjoint: list[Tensor],
        kept: list[Tensor],
        inputs: Tensor,
        labels: Tensor,
        share: Tensor | None,
    ) -> Tensor:
        """Undoes the step in `state` where it keeps no copy of it, takes `adjoint` back over the step in place, and
        gives the slope of <gradient, adjoint> by the inputs."""
        ...


class _Plain:
    """States in torch's layout; a step keeps the weights it started from."""

    def __init__(self, network: Network, loss: Loss, weights: Named, lr: float) -> None:
        self.network, self.loss, self.names, self.lr = network, loss, tuple(weights), lr

    def load(self, named: Named) -> list[Tensor]:
        return [named[name].clone(memory_format=torch.contiguous_format) for name in self.names]

    def named(self, state: list[Tensor]) -> dict[str, Tensor]:
        return dict(zip(self.names, state, strict=True))

    def value(self, weights: dict[str, Tensor], inputs: Tensor, labels: Tensor, share: Tensor | None) -> Tensor:
        outputs = self.network(weights, inputs)
        if share is None:
            return self.loss(outputs, labels)
        return (vmap(lambda o, t: self.loss(o[None], t[None]))(outputs, labels) * share).sum()


class MappedSteps(_Plain):
    """torch.func maps one network's step over all of them."""

    def forward(self, state: list[Tensor], inputs: Tensor, labels: Tensor, share: Tensor | None) -> list[Tensor]:
        kept = [one.clone() for one in state]
        each = vmap(grad(self.value), in_dims=(0, 0, 0, None if share is None else 0))
        gradient = each(self.named(kept), inputs, labels, share)
        for name, one in zip(self.names, state, strict=True):
            one.sub_(gradient[name], alpha=self.lr)
        return kept

    def backward(
        self,
        state: list[Tensor],
        adjoint: list[Tensor],
        kept: list[Tensor],
        inputs: Tensor,
        labels: Tensor,
        share: Tensor | None,
    ) -> Tensor:
        each = vmap(self._pull, in_dims=(0, 0, 0, 0, None if share is None else 0))
        along, slope = each(self.named(kept), self.named(adjoint), inputs, labels, share)
        for name, one in zip(self.names, adjoint, strict=True):
            one.sub_(along[name], alpha=self.lr)
        return slope

    def _pull(
        self, weights: dict[str, Tensor], adjoint: dict[str, Tensor], inputs: Tensor, labels: Tensor, share: Any
    ) -> tuple[dict[str, Tensor], Tensor]:
        gradient: Callable[..., dict[str, Tensor]] = grad(self.value)
        pull = vjp(lambda w, x: gradient(w, x, labels, share), weights, inputs)[1]
        along, slope = pull(adjoint)
        return along, slope


class LoneSteps(_Plain):
    """One network after the other, with autograd's own double backward: for modules that cannot be mapped."""

    def _gradient(
        self, weights: list[Tensor], inputs: Tensor, labels: Tensor, share: Tensor | None, graph: bool
    ) -> tuple[Tensor, ...]:
        if share is not None:
            # A module may look at the batch as a whole: it must not see what is not in it.
            held = share > 0
            inputs, labels = inputs[held], labels[held]
        value = self.loss(self.network(self.named(weights), inputs), labels)
        return torch.autograd.grad(value, weights, create_graph=graph, materialize_grads=True)

    def forward(self, state: list[Tensor], inputs: Tensor, labels: Tensor, share: Tensor | None) -> list[Tensor]:
        kept = [one.clone() for one in state]
        for i in range(len(labels)):
            if share is not None and not bool(share[i].any()):
                continue
            weights = [one[i].detach().requires_grad_() for one in kept]
            with torch.enable_grad():
                gradient = self._gradient(weights, inputs[i], labels[i], None if share is None else share[i], False)
            for one, found in zip(state, gradient, strict=True):
                one[i].sub_(found, alpha=self.lr)
        return kept

    def backward(
        self,
        state: list[Tensor],
        adjoint: list[Tensor],
        kept: list[Tensor],
        inputs: Tensor,
        labels: Tensor,
        share: Tensor | None,
    ) -> Tensor:
        slope = torch.zeros_like(inputs)
        for i in range(len(labels)):
            if share is not None and not bool(share[i].any()):
                continue
            weights = [one[i].detach().requires_grad_() for one in kept]
            own = inputs[i].detach().requires_grad_()
            with torch.enable_grad():
                gradient = self._gradient(weights, own, labels[i], None if share is None else share[i], True)
                pairs = [(g, one[i]) for g, one in zip(gradient, adjoint, strict=True) if g.requires_grad]
                # Asked for some leaves alone, autograd prunes a function that may be differentiated only once,
                # silently.
                torch.autograd.backward([g for g, _ in pairs], [a for _, a in pairs])
            for one, leaf in zip(adjoint, weights, strict=True):
                if leaf.grad is not None:
                    one[i].sub_(leaf.grad, alpha=self.lr)
            if own.grad is not None:
                slope[i] = own.grad
        return slope
