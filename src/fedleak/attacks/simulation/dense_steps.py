"""One step of SGD, and the way back, written out for the dense layers at the end of a network, many networks at once.

Dense layers keep the factors of their gradient and are *undone* on the way back instead of being stored: their gradient
has the rank of the batch, and their weights are nearly all there is to store.

A name with `d_` in front is the derivative along the adjoint of what it names. ReLU's second derivative is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedleak.attacks.simulation.conv_layers import Layer
from fedleak.types import Named

__all__ = ["DenseKept", "DenseSteps", "Products", "TorchProducts"]

Pairs = list[tuple[Tensor, Tensor]]
"""(matrix, bias) of every layer."""


@dataclass(frozen=True, eq=False)
class DenseKept:
    """What one step leaves for its way back, in the order of the layers."""

    hidden: list[Tensor]
    """Inputs of the layers."""
    slopes: list[Tensor]
    """The loss's slope by the outputs of the layers."""
    chances: Tensor

    def flat(self) -> list[Tensor]:
        return [*self.hidden, *self.slopes, self.chances]

    @staticmethod
    def of(flat: list[Tensor]) -> DenseKept:
        layers = len(flat) // 2
        return DenseKept(flat[:layers], flat[layers:-1], flat[-1])


class Products(Protocol):
    """The products with matrices (networks, in, out) that a step takes, over which nearly all its time goes."""

    def ahead(self, inputs: Tensor, matrix: Tensor) -> Tensor:
        """inputs matrix."""
        ...

    def turn(self, matrix: Tensor, inputs: Tensor, slope: Tensor, lr: float) -> Tensor:
        """The slope by the inputs; `matrix` moves by one step."""
        ...

    def d_ahead(
        self, matrix: Tensor, d_matrix: Tensor, inputs: Tensor, d_inputs: Tensor, slope: Tensor, lr: float
    ) -> Tensor:
        """d(inputs matrix) with the matrix from before the step; it may be undone here or in d_turn."""
        ...

    def d_turn(
        self,
        matrix: Tensor,
        d_matrix: Tensor,
        inputs: Tensor,
        d_inputs: Tensor,
        slope: Tensor,
        d_slope: Tensor,
        lr: float,
    ) -> Tensor:
        """d(slope by the inputs), with the matrix from before the step, which it is afterwards; the adjoint of the
        matrix, `d_matrix`, goes back over the step."""
        ...


class TorchProducts:
    """Products as torch has them."""

    def ahead(self, inputs: Tensor, matrix: Tensor) -> Tensor:
        return torch.bmm(inputs, matrix)

    def turn(self, matrix: Tensor, inputs: Tensor, slope: Tensor, lr: float) -> Tensor:
        before = torch.bmm(slope, matrix.mT)
        matrix.baddbmm_(inputs.mT, slope, alpha=-lr)
        return before

    def d_ahead(
        self, matrix: Tensor, d_matrix: Tensor, inputs: Tensor, d_inputs: Tensor, slope: Tensor, lr: float
    ) -> Tensor:
        matrix.baddbmm_(inputs.mT, slope, alpha=lr)
        return torch.bmm(inputs, d_matrix).baddbmm_(d_inputs, matrix)

    def d_turn(
        self,
        matrix: Tensor,
        d_matrix: Tensor,
        inputs: Tensor,
        d_inputs: Tensor,
        slope: Tensor,
        d_slope: Tensor,
        lr: float,
    ) -> Tensor:
        d_before = torch.bmm(d_slope, matrix.mT).baddbmm_(slope, d_matrix.mT)
        left, right = torch.cat([inputs, d_inputs], dim=1), torch.cat([d_slope, slope], dim=1)
        d_matrix.baddbmm_(left.mT, right, alpha=-lr)
        return d_before


class DenseSteps:
    """Dense layers with ReLUs between them under cross-entropy. A state is, per layer, a matrix (networks, in, out) and
    a bias (networks, 1, out); `places` is the height and width of what the first of them reads, channels last."""

    def __init__(
        self, layers: tuple[Layer, ...], places: tuple[int, int], lr: float, products: Products | None = None
    ) -> None:
        self.layers, self.places, self.lr = layers, places, lr
        self.products = products or TorchProducts()

    def load(self, named: Named) -> list[Tensor]:
        state: list[Tensor] = []
        for k, (name, into, out) in enumerate(self.layers):
            matrix, bias = named[f"{name}.weight"], named[f"{name}.bias"]
            networks = len(matrix)
            # torch flattens channels first; here they are last
            parts = matrix.reshape(networks, out, -1, *self._places(k)).permute(0, 3, 4, 2, 1)
            state.append(matrix.new_empty(parts.shape).copy_(parts).view(networks, into, out))
            state.append(bias[:, None].clone())
        return state

    def named(self, state: list[Tensor]) -> dict[str, Tensor]:
        """In torch's layout, by name."""
        found: dict[str, Tensor] = {}
        for k, ((name, into, out), (matrix, bias)) in enumerate(zip(self.layers, _pairs(state), strict=True)):
            parts = matrix.view(len(matrix), *self._places(k), -1, out).permute(0, 4, 3, 1, 2)
            found[f"{name}.weight"], found[f"{name}.bias"] = parts.reshape(len(matrix), out, into), bias[:, 0]
        return found

    def forward(
        self, state: list[Tensor], inputs: Tensor, labels: Tensor, share: Tensor | None
    ) -> tuple[Tensor, DenseKept]:
        """Moves `state`; the loss's slope by `inputs` (networks, images, features), and what `backward` needs."""
        dense, hidden = _pairs(state), [inputs]
        for matrix, bias in dense:
            hidden.append(self.products.ahead(hidden[-1], matrix).add_(bias))
            if len(hidden) <= len(dense):
                hidden[-1].clamp_min_(0)
        chances = hidden.pop().softmax(dim=-1)
        hit = torch.zeros_like(chances).scatter_(2, labels[:, :, None], 1.0)
        slope = (chances - hit) * _weight(share, inputs.shape[1])
        slopes: list[Tensor] = []
        for k in reversed(range(len(dense))):
            matrix, bias = dense[k]
            slopes.insert(0, slope)
            before = self.products.turn(matrix, hidden[k], slope, self.lr)
            bias.sub_(slope.sum(dim=1, keepdim=True), alpha=self.lr)
            slope = before.mul_(hidden[k] > 0) if k else before
        return slope, DenseKept(hidden, slopes, chances)

    def backward(
        self, state: list[Tensor], adjoint: list[Tensor], was: DenseKept, d_inputs: Tensor, share: Tensor | None
    ) -> Tensor:
        """Undoes the step in `state` and takes `adjoint` back over it; the derivative of the slope by the inputs."""
        dense, d_dense = _pairs(state), _pairs(adjoint)
        d_hidden = [d_inputs]
        for k, ((matrix, bias), (d_matrix, d_bias)) in enumerate(zip(dense, d_dense, strict=True)):
            given = was.hidden[k], d_hidden[k], was.slopes[k]
            d_made = self.products.d_ahead(matrix, d_matrix, *given, self.lr).add_(d_bias)
            bias.add_(was.slopes[k].sum(dim=1, keepdim=True), alpha=self.lr)
            d_hidden.append(d_made.mul_(was.hidden[k + 1] > 0) if k + 1 < len(dense) else d_made)
        d_scores, chances = d_hidden.pop(), was.chances
        d_chances = chances * (d_scores - (chances * d_scores).sum(dim=-1, keepdim=True))
        d_slope = d_chances * _weight(share, d_inputs.shape[1])
        for k in reversed(range(len(dense))):
            (matrix, _), (d_matrix, d_bias) = dense[k], d_dense[k]
            given = was.hidden[k], d_hidden[k], was.slopes[k]
            d_before = self.products.d_turn(matrix, d_matrix, *given, d_slope, self.lr)
            d_bias.sub_(d_slope.sum(dim=1, keepdim=True), alpha=self.lr)
            d_slope = d_before.mul_(was.hidden[k] > 0) if k else d_before
        return d_slope

    def _places(self, k: int) -> tuple[int, int]:
        return self.places if k == 0 else (1, 1)


def _pairs(state: list[Tensor]) -> Pairs:
    return list(zip(state[::2], state[1::2], strict=True))


def _weight(share: Tensor | None, images: int) -> Tensor | float:
    """What every image has in the mean loss."""
    return 1 / images if share is None else share[:, :, None]
