"""The small networks: the LeNet and MLP of the weight-leakage paper, and a plain CNN.

Each is a component whose fields are its hyperparameters; calling it with an input shape and a number of classes gives
a module. Initial values come from torch's generator, which `fedleak.models.build` seeds and gives back.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, PositiveFloat, PositiveInt
from torch import nn

from fedleak.components import component

__all__ = ["CNN", "MLP", "LeNet"]


@component
class LeNet:
    """DLG's LeNet (DLM's paper, table 4): three 5x5 convolutions of 12 channels with sigmoids, then one linear layer.

    All weights and biases are drawn from U(-spread, spread), as the original attack does: sigmoids with wide weights
    keep second derivatives alive.
    """

    paper: ClassVar[str] = "Zhu et al. 2019; Deep Leakage from Model in Federated Learning, table 4"
    revision: ClassVar[int] = 1
    channels: PositiveInt = 12
    spread: PositiveFloat = 0.5

    def __call__(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        colours, height, width = input_shape
        wide = self.channels
        quarter = ((height + 3) // 4) * ((width + 3) // 4)
        module = nn.Sequential(
            nn.Conv2d(colours, wide, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(wide, wide, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(wide, wide, 5, stride=1, padding=2),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(wide * quarter, classes),
        )
        for value in module.parameters():
            nn.init.uniform_(value, -self.spread, self.spread)
        return module


@component
class MLP:
    """The MLP of DLM's paper, table 3: flatten, linear, ReLU, linear."""

    paper: ClassVar[str] = "Deep Leakage from Model in Federated Learning, table 3"
    revision: ClassVar[int] = 1
    hidden: PositiveInt = 32

    def __call__(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        colours, height, width = input_shape
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(colours * height * width, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, classes),
        )


@component
class CNN:
    """A small CNN as engineers deploy it: two 3x3 convolutions with ReLU and max pooling, one hidden linear layer."""

    paper: ClassVar[str] = ""
    revision: ClassVar[int] = 1
    widths: tuple[PositiveInt, PositiveInt] = (16, 32)
    hidden: PositiveInt = Field(default=64)

    def __call__(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        colours, height, width = input_shape
        first, second = self.widths
        return nn.Sequential(
            nn.Conv2d(colours, first, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * (height // 4) * (width // 4), self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, classes),
        )
