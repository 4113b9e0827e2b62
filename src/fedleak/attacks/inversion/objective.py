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

SAME = 1e-2
"""How far two computations of the same slope may be apart, as a share: far above rounding, far below a wrong one."""

SURE = 8.0
"""Added to a label's logit: a probability of about 0.99 among ten classes and 0.9 among a hundred."""


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

    def draw(self, rng: torch.Generator, count: int = 1, spread: float = 1.0) -> Tensor:
        """Starts (count, size): inputs from N(0, spread^2), labels from N(0, 1); the papers draw one with spread 1.

        Of several, every second one is sure of its labels, a class further each time. Where the network already
        predicts the client's label, a start in doubt has a gradient that points the wrong way, and never turns.
        """
        starts = torch.randn(count, self.size, generator=rng)
        starts[:, : self.pixels] *= spread
        if count > 1:
            order = torch.randperm(self.classes, generator=rng)
            sure = torch.arange(1, count, 2)
            for image in range(self.images):
                chosen = order[(sure // 2 + image) % self.classes]
                starts[sure, self.pixels + image * self.classes + chosen] += SURE
        return starts

    def inputs(self, points: Tensor) -> Tensor:
        return points[:, : self.pixels].reshape(-1, self.images, *self.input_shape)

    def logits(self, points: Tensor) -> Tensor:
        return points[:, self.pixels :].reshape(-1, self.images, self.classes)


class GradientMatch:
    """Values and slopes of many problems at the same weights.

    At most `piece` problems are evaluated at once; where memory runs out it is halved. Where the module cannot be
    mapped over problems they are evaluated one by one, and `fallback` says why.
    """

    def __init__(
        self,
        network: Network,
        weights: Named,
        buffers: Named,
        loss: Loss,
        dummies: Dummies,
        distance: Distance,
        piece: int = 64,
    ) -> None:
        self.network, self.loss, self.dummies, self.distance = network, loss, dummies, distance
        self.weights, self.buffers = dict(weights), dict(buffers)
        self.piece, self.fallback = piece, ""
        self._mapped: Callable[..., dict[str, Tensor]] = vmap(grad(self._loss), in_dims=(None, 0, 0, 0))
        self._probe()

    def _loss(self, weights: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        # A module changes its buffers in place (BatchNorm): hand it copies.
        copies = {name: value.clone() for name, value in buffers.items()}
        return self.loss(self.network({**weights, **copies}, inputs), labels)

    def __call__(self, points: Tensor, targets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Points (b, size) and targets, each (b, ...), to values (b,) and slopes (b, size)."""
        while True:
            try:
                return self._in_pieces(points, targets)
            except torch.OutOfMemoryError:
                if self.piece == 1:
                    raise
                self.piece = max(1, min(self.piece, len(points)) // 2)

    def _in_pieces(self, points: Tensor, targets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        evaluate = self._alone if self.fallback else self._together
        if len(points) <= self.piece:
            return evaluate(points, targets)
        cuts = range(0, len(points), self.piece)
        parts = [evaluate(points[i : i + self.piece], [t[i : i + self.piece] for t in targets]) for i in cuts]
        return torch.cat([value for value, _ in parts]), torch.cat([slope for _, slope in parts])

    def _together(self, points: Tensor, targets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        points = points.detach().requires_grad_()
        labels = self.dummies.logits(points).softmax(dim=-1)
        buffers = {name: value.expand(len(points), *value.shape) for name, value in self.buffers.items()}
        gradient = self._mapped(self.weights, buffers, self.dummies.inputs(points), labels)
        return self._pull(points, [gradient[name] for name in self.weights], targets)

    def _alone(self, point: Tensor, target: Sequence[Tensor], strict: bool = False) -> tuple[Tensor, Tensor]:
        point = point.detach().requires_grad_()
        weights = {name: value.detach().requires_grad_() for name, value in self.weights.items()}
        inputs, labels = self.dummies.inputs(point)[0], self.dummies.logits(point)[0].softmax(dim=-1)
        loss = self._loss(weights, self.buffers, inputs, labels)
        found = torch.autograd.grad(loss, list(weights.values()), create_graph=True, materialize_grads=True)
        return self._pull(point, [g[None] for g in found], target, strict)

    def _pull(
        self, points: Tensor, gradient: Sequence[Tensor], targets: Sequence[Tensor], strict: bool = False
    ) -> tuple[Tensor, Tensor]:
        value, slopes = self.distance([g.detach() for g in gradient], targets)
        pairs = [(g, s) for g, s in zip(gradient, slopes, strict=True) if g.requires_grad]
        outputs, cotangents = [g for g, _ in pairs], [s for _, s in pairs]
        if not strict:
            (slope,) = torch.autograd.grad(outputs, points, cotangents)
            return value, slope
        # Asked for the inputs alone, autograd prunes a function that may be differentiated only once, without a word.
        torch.autograd.backward(outputs, cotangents)
        assert points.grad is not None
        return value, points.grad

    def _probe(self) -> None:
        """Evaluate two harmless problems, to learn whether the module can be differentiated twice, and mapped."""
        like = next(iter(self.weights.values()))
        points = torch.linspace(-1, 1, 2 * self.dummies.size, dtype=like.dtype, device=like.device).reshape(2, -1)
        targets = self.distance.prepare([torch.ones_like(w).expand(2, *w.shape) for w in self.weights.values()])
        try:
            alone = [self._alone(points[i : i + 1], [t[i : i + 1] for t in targets], strict=True)[1] for i in (0, 1)]
        except Exception as error:  # a user's module may raise anything
            raise RefusedError(
                f"model: its gradient cannot be differentiated with respect to the inputs ({_first_line(error)}); "
                "an inversion needs a module that is twice differentiable"
            ) from error
        try:
            _, together = self._together(points, targets)
            # torch maps some layers to other second derivatives than theirs (BatchNorm on batch statistics).
            apart = torch.linalg.vector_norm(together - torch.cat(alone))
            trouble = "" if apart <= SAME * torch.linalg.vector_norm(together) else "its mapped derivatives are wrong"
        except Exception as error:
            trouble = _first_line(error)
        if trouble:
            self.piece = 1
            self.fallback = f"victims one by one: the module cannot be mapped over them ({trouble})"


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
