"""What a network is fed and what it answers, read off its weights or found by trying.

A recording of a deployment holds arrays, and nothing says how large a picture is; an attack has to know. What cannot
be told is left unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from fedleak.types import Named

__all__ = ["classes_in", "input_shape_of", "picture_in"]

COMMON_SIZES = (8, 14, 16, 20, 24, 28, 32, 48, 56, 64, 96, 112, 128, 160, 192, 224, 256, 299, 384, 512)


def classes_in(weights: Named) -> int:
    """The rows of the last matrix: a classifier's last layer. 1 where there is no matrix."""
    matrices = [value for value in weights.values() if value.ndim == 2]
    return int(matrices[-1].shape[0]) if matrices else 1


def input_shape_of(model: Callable[[], nn.Module] | None, weights: Named) -> tuple[int, ...]:
    """(channels, height, width), or () where it cannot be told. Pictures are taken to be square."""
    first = next((value for value in weights.values() if value.ndim >= 2), None)
    if first is None:
        return ()
    if first.ndim == 2:
        return picture_in(int(first.shape[1]))
    if first.ndim != 4 or model is None:
        return ()
    fitting = _sizes_that_fit(model, int(first.shape[1]))
    return (int(first.shape[1]), fitting[0], fitting[0]) if len(fitting) == 1 else ()


def picture_in(numbers: int) -> tuple[int, ...]:
    """The square picture of one or three channels with so many numbers. No number is both n^2 and 3 n^2.

    >>> picture_in(784), picture_in(3072), picture_in(10)
    ((1, 28, 28), (3, 32, 32), ())
    """
    for channels in (1, 3):
        side = math.isqrt(numbers // channels)
        if channels * side * side == numbers and side > 1:
            return (channels, side, side)
    return ()


def _sizes_that_fit(model: Callable[[], nn.Module], channels: int) -> list[int]:
    """Which of the common sizes the network takes, at most two: a layer behind a flattening takes few."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module = model().eval()
        found: list[int] = []
        for size in COMMON_SIZES:
            try:
                module(torch.zeros(1, channels, size, size))
            except (RuntimeError, ValueError):
                continue
            found.append(size)
            if len(found) > 1:
                break
    return found
