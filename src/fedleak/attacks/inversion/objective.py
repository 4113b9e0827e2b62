"""The objective of every inversion: how far is the gradient that the dummies make from the one the client sent?

All problems (victims times starts) are evaluated at once: torch.func maps the network's gradient over them, ordinary
autograd pulls the distance's derivative back onto the dummies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from weakref import ref

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedleak.attacks.inversion.capture import Replay, Work
from fedleak.attacks.inversion.distances import Distance, JointDistance
from fedleak.attacks.inversion.dummies import Dummies
from fedleak.attacks.inversion.priors import Prior
from fedleak.errors import RefusedError
from fedleak.learning.functional import Loss, Network
from fedleak.learning.memory import saved_by_autograd
from fedleak.types import Named

__all__ = ["GradientMatch"]

ROOM_ON_A_CPU = 2 * 2**30
"""Bytes that problems evaluated at once may take there: a machine that is out of memory raises no error, it kills. A
fixed number and not what is free now, so that the same specification gives the same bits on a busy machine."""
COPIES = 6
"""Tensors as large as all weights for every problem: its gradient, the target, their distance and its slope."""
SAME = 1e-2
"""How far two computations of the same slope may be apart, as a share: far above rounding, far below a wrong one."""


def _loss(network: Network, loss: Loss, weights: Named, buffers: Named, inputs: Tensor, labels: Tensor) -> Tensor:
    # A module changes its buffers in place (BatchNorm): hand it copies.
    copies = {name: value.clone() for name, value in buffers.items()}
    return loss(network({**weights, **copies}, inputs), labels)


def _work_of(match: ref[GradientMatch]) -> Work:
    """What is replayed. Held weakly: in a cycle the graphs of an objective that nobody needs any more would keep a
    GPU's memory until Python looks for cycles, which it does by counting objects."""

    def work(points: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        held = match()
        assert held is not None
        return held._together(points, given)

    return work


class GradientMatch:
    """Values and slopes of many problems at the same weights.

    At most `piece` problems are evaluated at once: fewer where they would take too much of a CPU's memory, half where a
    GPU's runs out. Where the module cannot be mapped over problems they are evaluated one by one, and `fallback` says
    why. On a GPU an evaluation is recorded once per batch size and replayed; where that is not possible it is computed
    each time, and `uncaptured` says why.
    """

    def __init__(
        self,
        network: Network,
        weights: Named,
        buffers: Named,
        loss: Loss,
        dummies: Dummies,
        distance: Distance | JointDistance,
        piece: int = 64,
        prior: Prior | None = None,
    ) -> None:
        self.network, self.loss, self.dummies, self.distance = network, loss, dummies, distance
        self.weights, self.buffers, self.prior = dict(weights), dict(buffers), prior
        self.piece, self.fallback = piece, ""
        self._mapped: Callable[..., dict[str, Tensor]] = vmap(grad(partial(_loss, network, loss)), (None, 0, 0, 0))
        self._replay: Replay | None = None
        self._probe()
        if next(iter(self.weights.values())).is_cuda and not self.fallback:
            self._replay = Replay(_work_of(ref(self)))

    @property
    def uncaptured(self) -> str:
        return self._replay.trouble if self._replay else ""

    def __call__(self, points: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Points (b, size) and what is given for each problem to values (b,) and slopes (b, size).

        Given are the targets, each (b, ...), and, where labels are not soft, last the labels (b, images, classes).
        """
        while True:
            try:
                return self._in_pieces(points, given)
            except torch.OutOfMemoryError:
                if self.piece == 1:
                    raise
                self.piece = max(1, min(self.piece, len(points)) // 2)

    def _in_pieces(self, points: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        evaluate = self._alone if self.fallback else self._replay or self._together
        if len(points) <= self.piece:
            return evaluate(points, given)
        cuts = range(0, len(points), self.piece)
        parts = [evaluate(points[i : i + self.piece], [t[i : i + self.piece] for t in given]) for i in cuts]
        return torch.cat([value for value, _ in parts]), torch.cat([slope for _, slope in parts])

    def _split(self, points: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        """Labels (b, images, classes) and targets."""
        if self.dummies.soft:
            return self.dummies.labels(points), given
        return given[-1], given[:-1]

    def _together(self, points: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        points = points.detach().requires_grad_()
        labels, targets = self._split(points, given)
        buffers = {name: value.expand(len(points), *value.shape) for name, value in self.buffers.items()}
        gradient = self._mapped(self.weights, buffers, self.dummies.inputs(points), labels)
        return self._pull(points, [gradient[name] for name in self.weights], targets)

    def _alone(self, point: Tensor, given: Sequence[Tensor], strict: bool = False) -> tuple[Tensor, Tensor]:
        point = point.detach().requires_grad_()
        weights = {name: value.detach().requires_grad_() for name, value in self.weights.items()}
        labels, targets = self._split(point, given)
        loss = _loss(self.network, self.loss, weights, self.buffers, self.dummies.inputs(point)[0], labels[0])
        found = torch.autograd.grad(loss, list(weights.values()), create_graph=True, materialize_grads=True)
        return self._pull(point, [g[None] for g in found], targets, strict)

    def _pull(
        self, points: Tensor, gradient: Sequence[Tensor], targets: Sequence[Tensor], strict: bool = False
    ) -> tuple[Tensor, Tensor]:
        plain, own = [g.detach() for g in gradient], None
        if isinstance(self.distance, JointDistance):
            value, slopes, own = self.distance.joint(plain, targets, self.dummies.unknowns(points).detach())
        else:
            value, slopes = self.distance(plain, targets)
        pairs = [(g, s) for g, s in zip(gradient, slopes, strict=True) if g.requires_grad]
        outputs, cotangents = [g for g, _ in pairs], [s for _, s in pairs]
        if not strict:
            (slope,) = torch.autograd.grad(outputs, points, cotangents)
        else:
            # Asked for the inputs alone, autograd prunes a function that may be differentiated only once, silently.
            torch.autograd.backward(outputs, cotangents)
            assert points.grad is not None
            slope = points.grad
        if own is not None:
            self.dummies.unknowns(slope).add_(own)
        if self.prior is not None:
            more, pull = self.prior(self.dummies.inputs(points.detach()))
            value = value + more
            slope[:, : self.dummies.pixels] += pull.flatten(1)
        return value, slope

    def _probe(self) -> None:
        """Evaluate two harmless problems, to learn whether the module can be differentiated twice, and mapped."""
        like = next(iter(self.weights.values()))
        points = torch.linspace(-1, 1, 2 * self.dummies.size, dtype=like.dtype, device=like.device).reshape(2, -1)
        given = self.distance.prepare([torch.ones_like(w).expand(2, *w.shape) for w in self.weights.values()])
        if not self.dummies.soft:
            given = (*given, like.new_full((2, self.dummies.images, self.dummies.classes), 1 / self.dummies.classes))
        try:
            alone = [self._alone(points[i : i + 1], [t[i : i + 1] for t in given], strict=True)[1] for i in (0, 1)]
        except Exception as error:  # a user's module may raise anything
            raise RefusedError(
                f"model: its gradient cannot be differentiated with respect to the inputs ({_first_line(error)}); "
                "an inversion needs a module that is twice differentiable"
            ) from error
        if not like.is_cuda:
            with saved_by_autograd() as kept:
                self._alone(points[:1], [t[:1] for t in given])
            own = sum(weight.numel() * weight.element_size() for weight in self.weights.values())
            self.piece = max(1, min(self.piece, ROOM_ON_A_CPU // (COPIES * own + kept.total)))
        try:
            _, together = self._together(points, given)
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
