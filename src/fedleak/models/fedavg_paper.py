"""The two networks of the FedAvg leakage paper: 3x3 convolutions, average pooling, one hidden dense layer.

Where a figure is compared, name the initialisation: the same attack recovers clearly more from torch's than from the
paper's.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt
from torch import nn

from fedleak.components import component

__all__ = ["CNNCIFAR100", "CNNFEMNIST"]

TRUNCATED = 0.87962566103423978
"""The standard deviation of a standard normal that is cut off at -2 and 2, by which lecun-normal divides."""

Init = Literal["lecun", "torch"]


def _lecun_normal(module: nn.Module) -> None:
    """Kernels from a normal cut off at two of its deviations, with variance 1/fan_in after the cut; biases zero."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            fan_in = layer.weight[0].numel()
            wide = math.sqrt(1 / fan_in) / TRUNCATED
            nn.init.trunc_normal_(layer.weight, std=wide, a=-2 * wide, b=2 * wide)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)


def _network(widths: tuple[int, ...], hidden: int, init: Init, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    channels, height, width = input_shape
    layers: list[nn.Module] = []
    for wide in widths:
        layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
        channels, height, width = wide, height // 2, width // 2
    layers += [nn.Flatten(), nn.Linear(channels * height * width, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
    module = nn.Sequential(*layers)
    if init == "lecun":
        _lecun_normal(module)
    return module


@component
class CNNFEMNIST:
    """The FEMNIST network: 338,778 parameters at 1x28x28 and 62 classes."""

    paper: ClassVar[str] = "Dimitrov et al. 2022; Data Leakage in Federated Averaging, section 5"
    revision: ClassVar[int] = 1
    widths: tuple[PositiveInt, PositiveInt] = (32, 64)
    hidden: PositiveInt = 100
    init: Init = Field(default="lecun", description="lecun: the paper's, with zero biases; torch: torch's default")

    def __call__(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return _network(self.widths, self.hidden, self.init, input_shape, classes)


@component
class CNNCIFAR100:
    """The CIFAR-100 network: 1,734,348 parameters at 3x32x32 and 100 classes."""

    paper: ClassVar[str] = "Dimitrov et al. 2022; Data Leakage in Federated Averaging, section 5"
    revision: ClassVar[int] = 1
    widths: tuple[PositiveInt, PositiveInt] = (64, 128)
    hidden: PositiveInt = 200
    init: Init = Field(default="lecun", description="lecun: the paper's, with zero biases; torch: torch's default")

    def __call__(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return _network(self.widths, self.hidden, self.init, input_shape, classes)
