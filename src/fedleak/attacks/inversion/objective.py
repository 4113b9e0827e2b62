"""The objective of every inversion: how far is the gradient that the dummies make from the one the client sent?

All problems (victims times starts) are evaluated at once: torch.func maps the network's gradient over them, ordinary
autograd pulls the distance's derivative back onto the dummies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedleak.attacks.inversion.distances import Distance
from fedleak.errors import RefusedError
from fedleak.learning.functional import Loss, Network
from fedleak.types import Named

__all__ = ["Dummies", "GradientMatch"]


@dataclass(frozen=True)
class Dummies:
    """The unknowns of one problem as one row of numbers: `images` inputs, then one soft label (logits) each."""

    images: int
    input_shape: tuple[int, ...]
    classes: int

    @property
    def pixels(self) -> int:
        return self.images * int(torch.Size(self.input_shape).numel())

    @property
    def size(self) -> int:
        return self.pixels + self.images * self.classes

    def draw(self, rng: torch.Generator, spread: float = 1.0) -> Tensor:
        """Labels from N(0, 1) and inputs from N(0, spread^2); the papers start with a spread of 1."""
        start = torch.randn(self.size, generator=rng)
        start[: self.pixels] *= spread
        return start

    def inputs(self, points: Tensor) -> Tensor:
        return points[:, : self.pixels].reshape(-1, self.images, *self.input_shape)

    def logits(self, points: Tensor) -> Tensor:
        return points[:, self.pixels :].reshape(-1, self.images, self.classes)


class GradientMatch:
    """Values and slopes of many problems at the same weights.

    `targets` holds one row per victim. Where the module cannot be mapped over problems, they are evaluated one by one
    and `fallback` says why.
    """

    def __init__(
        self, network: Network, weights: Named, buffers: Named, loss: Loss, dummies: Dummies, distance: Distance
    ) -> None:
        self.network, self.loss, self.dummies, self.distance = network, loss, dummies, distance
        self.weights, self.buffers = dict(weights), dict(buffers)
        self.fallback = ""
        self._mapped: Callable[..., dict[str, Tensor]] = vmap(grad(self._loss), in_dims=(None, 0, 0, 0))
        self._probe()

    def _loss(self, weights: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        # A module changes its buffers in place (BatchNorm): hand it copies.
        copies = {name: value.clone() for name, value in buffers.items()}
        return self.loss(self.network({**weights, **copies}, inputs), labels)

    def __call__(self, points: Tensor, targets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Points (b, size) and targets, each (b, ...), to values (b,) and slopes (b, size)."""
        if not self.fallback:
            return self._together(points, targets)
        alone = [self._alone(points[i : i + 1], [t[i : i + 1] for t in targets]) for i in range(len(points))]
        return torch.cat([value for value, _ in alone]), torch.cat([slope for _, slope in alone])

    def _together(self, points: Tensor, targets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        points = points.detach().requires_grad_()
        labels = self.dummies.logits(points).softmax(dim=-1)
        buffers = {name: value.expand(len(points), *value.shape) for name, value in self.buffers.items()}
        gradient = self._mapped(self.weights, buffers, self.dummies.inputs(points), labels)
        return self._pull(points, [gradient[name] for name in self.weights], targets)

    def _alone(self, point: Tensor, target: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        point = point.detach().requires_grad_()
        weights = {name: value.detach().requires_grad_() for name, value in self.weights.items()}
        inputs, labels = self.dummies.inputs(point)[0], self.dummies.logits(point)[0].softmax(dim=-1)
        loss = self._loss(weights, self.buffers, inputs, labels)
        found = torch.autograd.grad(loss, list(weights.values()), create_graph=True, materialize_grads=True)
        return self._pull(point, [g[None] for g in found], target)

    def _pull(self, points: Tensor, gradient: Sequence[Tensor], targets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        value, slopes = self.distance([g.detach() for g in gradient], targets)
        pairs = [(g, s) for g, s in zip(gradient, slopes, strict=True) if g.requires_grad]
        (slope,) = torch.autograd.grad([g for g, _ in pairs], points, [s for _, s in pairs])
        return value, slope

    def _probe(self) -> None:
        """Evaluate two harmless problems once, to learn whether the module can be mapped and differentiated twice."""
        like = next(iter(self.weights.values()))
        points = torch.linspace(-1, 1, 2 * self.dummies.size, dtype=like.dtype, device=like.device).reshape(2, -1)
        targets = self.distance.prepare([torch.ones_like(w).expand(2, *w.shape) for w in self.weights.values()])
        try:
            self._together(points, targets)
        except Exception as mapping:  # a user's module may raise anything
            try:
                self._alone(points[:1], [t[:1] for t in targets])
            except Exception as alone:
                raise RefusedError(
                    f"model: its gradient cannot be differentiated with respect to the inputs ({_first_line(alone)}); "
                    "an inversion needs a module that is twice differentiable"
                ) from alone
            self.fallback = f"victims one by one: the module cannot be mapped over them ({_first_line(mapping)})"


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
