"""What is done to pixels between the file and the client: grey, resize, and [0, 1]."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedleak.errors import ShapeError

__all__ = ["as_pixels", "resized", "to_grey"]


def as_pixels(inputs: Tensor, *, size: int | None = None, grey: bool = False) -> Tensor:
    """uint8 images (n, C, H, W) as float32 pixels in [0, 1], made grey first and then resized where asked."""
    if grey:
        inputs = to_grey(inputs)
    if size is not None:
        inputs = resized(inputs, size)
    return inputs.to(torch.float32) / 255.0


def to_grey(inputs: Tensor) -> Tensor:
    """Luma of ITU-R 601-2 in the fixed-point arithmetic of Pillow's convert("L"); grey images stay as they are."""
    if inputs.shape[1] == 1:
        return inputs
    if inputs.shape[1] != 3:
        raise ShapeError(f"grey: images have {inputs.shape[1]} channels; only 1 or 3 can be made grey")
    red, green, blue = inputs.to(torch.int32).unbind(1)
    luma = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16
    return luma.to(torch.uint8).unsqueeze(1)


def resized(inputs: Tensor, size: int) -> Tensor:
    """Every channel to size x size with Pillow's bilinear filter, which averages when it shrinks.

    Pillow resizes 8-bit images in integers: the same bits on every machine, which torch's interpolate does not promise.
    """
    if inputs.shape[2:] == (size, size):
        return inputs
    count, channels = inputs.shape[:2]
    out = np.empty((count, channels, size, size), dtype=np.uint8)
    for source, target in zip(inputs.flatten(0, 1).numpy(), out.reshape(-1, size, size), strict=True):
        target[:] = np.asarray(Image.fromarray(source).resize((size, size), Image.Resampling.BILINEAR))
    return torch.from_numpy(out)
