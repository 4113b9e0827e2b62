"""What stands beside the distance in the objective of the FedAvg simulation, each in closed form.

All take dummies (rows, epochs, images, C, H, W) in the space that the network sees, and give values (rows,) and slopes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedleak.attacks.inversion.distances import squared_norm
from fedleak.types import Normalisation

__all__ = ["LayeredL2", "OutOfRange", "Smoothness", "layer_weights"]

OFFSET = 1e-7
"""What the authors' code adds to every squared difference; it moves the objective, not its slope."""


def _rows(values: Tensor) -> Tensor:
    return values.flatten(1).sum(dim=1)


@dataclass(frozen=True)
class Smoothness:
    """`weight` times the total variation, averaged over all dummy images.

    "squared" is the released form: squared forward differences with circular wrap, summed over pixels and channels.
    "absolute" is that of Geiping et al.: absolute differences without wrap, averaged over pixels and channels.
    """

    weight: float
    norm: Literal["squared", "absolute"] = "squared"

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        images = inputs.shape[1] * inputs.shape[2]
        value, slope = inputs.new_zeros(len(inputs)), torch.zeros_like(inputs)
        for along in (-1, -2):
            if self.norm == "squared":
                apart = inputs.roll(-1, along) - inputs
                value = value + self.weight / images * _rows(apart.square() + OFFSET)
                pull = 2 * self.weight / images * apart
                slope += pull.roll(1, along) - pull
            elif inputs.shape[along] > 1:
                apart = inputs.diff(dim=along)
                share = self.weight / (apart.numel() / len(inputs))
                value = value + share * _rows(apart.abs())
                pull, length = share * apart.sign(), apart.shape[along]
                slope.narrow(along, 1, length).add_(pull)
                slope.narrow(along, 0, length).sub_(pull)
        return value, slope


@dataclass(frozen=True)
class OutOfRange:
    """`weight` times the squared distance of the pixels to [0, 1], summed over pixels, averaged over images."""

    weight: float
    normalisation: Normalisation

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        share = self.weight / (inputs.shape[1] * inputs.shape[2])
        pixels = self.normalisation.undo(inputs)
        beyond = pixels - pixels.clamp(0, 1)
        # undo is affine: its slope is the standard deviation, which undoing ones less undoing zeros gives.
        one = torch.ones_like(inputs[:1, :1, :1])
        std = self.normalisation.undo(one) - self.normalisation.undo(torch.zeros_like(one))
        return share * _rows(beyond.square()), 2 * share * beyond * std


def layer_weights(names: Sequence[str], decay: float) -> tuple[float, ...]:
    """One weight per parameter, decay^layer: a module's weight and bias are one layer, in the order of the network."""
    layers: dict[str, int] = {}
    found = [layers.setdefault(name.rpartition(".")[0] or name, len(layers)) for name in names]
    return tuple(decay**layer for layer in found)


@dataclass(frozen=True)
class LayeredL2:
    """The squared distance, every tensor with its own weight: the distance of the authors' table scripts."""

    weights: tuple[float, ...]
    factor: float = 1.0

    def prepare(self, target: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(target)

    def __call__(self, gradient: Sequence[Tensor], target: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        apart = [g - t for g, t in zip(gradient, target, strict=True)]
        value = self._value(apart)
        return value, tuple(a.mul_(2 * self.factor * w) for a, w in zip(apart, self.weights, strict=True))

    def _value(self, apart: Sequence[Tensor]) -> Tensor:
        parts = [w * squared_norm([a]) for a, w in zip(apart, self.weights, strict=True)]
        return self.factor * torch.stack(parts).sum(dim=0)
