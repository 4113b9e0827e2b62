"""The networks of the learned priors: pictures in [-1, 1] of one domain to pictures of the other, channels first."""

from __future__ import annotations

import itertools
import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["AutoEncoder", "ResnetGenerator", "patch_discriminator"]

BLOCKS = 3


class AutoEncoder(nn.Module):
    """A convolutional autoencoder: down by strides, up by nearest neighbours, with what was seen at each size handed
    across, so that what the two domains share need not pass the narrow middle."""

    def __init__(self, channels: int, size: tuple[int, int], width: int) -> None:
        super().__init__()
        levels = max(1, min(4, int(math.log2(max(2, min(size)))) - 2))
        widths = [width * min(2**level, 4) for level in range(levels + 1)]
        self.enter = nn.Conv2d(channels, widths[0], 3, padding=1)
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(nn.Conv2d(few, many, 4, stride=2, padding=1) for few, many in pairs)
        self.up = nn.ModuleList(nn.Conv2d(few + many, few, 3, padding=1) for few, many in reversed(pairs))
        self.leave = nn.Conv2d(widths[0], channels, 3, padding=1)

    def forward(self, pictures: Tensor) -> Tensor:
        sizes = [F.leaky_relu(self.enter(pictures), 0.2)]
        for layer in self.down:
            sizes.append(F.leaky_relu(layer(sizes[-1]), 0.2))
        value = sizes.pop()
        for layer in self.up:
            across = sizes.pop()
            value = torch.cat([across, F.interpolate(value, size=across.shape[-2:], mode="nearest")], dim=1)
            value = F.leaky_relu(layer(value), 0.2)
        return torch.tanh(cast(Tensor, self.leave(value)))


class _Block(nn.Module):
    """x + conv(conv(x)), with instance normalisation."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(wide, wide, 3),
            nn.InstanceNorm2d(wide),
            nn.ReLU(),
            nn.ReflectionPad2d(1),
            nn.Conv2d(wide, wide, 3),
            nn.InstanceNorm2d(wide),
        )

    def forward(self, value: Tensor) -> Tensor:
        return value + cast(Tensor, self.body(value))


class ResnetGenerator(nn.Module):
    """CycleGAN's generator: 7x7, two strides down, residual blocks, two strides up, 7x7."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.ReflectionPad2d(3), nn.Conv2d(channels, width, 7)]
        layers += [nn.InstanceNorm2d(width), nn.ReLU()]
        for wide in (width, 2 * width):
            layers += [nn.Conv2d(wide, 2 * wide, 3, stride=2, padding=1), nn.InstanceNorm2d(2 * wide), nn.ReLU()]
        layers += [_Block(4 * width) for _ in range(BLOCKS)]
        for wide in (4 * width, 2 * width):
            up = nn.ConvTranspose2d(wide, wide // 2, 3, stride=2, padding=1, output_padding=1)
            layers += [up, nn.InstanceNorm2d(wide // 2), nn.ReLU()]
        layers += [nn.ReflectionPad2d(3), nn.Conv2d(width, channels, 7), nn.Tanh()]
        self.body = nn.Sequential(*layers)
        _start(self)

    def forward(self, pictures: Tensor) -> Tensor:
        height, width = pictures.shape[-2:]
        # Two strides and back: sides that are no multiple of four come back larger.
        return cast(Tensor, self.body(pictures))[..., :height, :width]


def patch_discriminator(channels: int, size: tuple[int, int], width: int) -> nn.Sequential:
    """PatchGAN of three layers (fewer for small pictures): one score for every patch."""
    strides = max(1, min(3, int(math.log2(max(2, min(size)))) - 2))
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
    wide = width
    for level in range(1, strides + 1):
        wider = width * min(2**level, 8)
        stride = 1 if level == strides else 2
        layers += [nn.Conv2d(wide, wider, 4, stride=stride, padding=1), nn.InstanceNorm2d(wider), nn.LeakyReLU(0.2)]
        wide = wider
    made = nn.Sequential(*layers, nn.Conv2d(wide, 1, 4, padding=1))
    _start(made)
    return made


def _start(module: nn.Module) -> None:
    """CycleGAN's initial values: N(0, 0.02)."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(layer.weight, 0.0, 0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
