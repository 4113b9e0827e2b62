"""What is done to pixels between the file and the client: grey or colour, resize, and [0, 1]."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedleak.errors import ShapeError

__all__ = ["as_pixels", "fitted", "resized", "to_colour", "to_grey"]


def as_pixels(inputs: Tensor) -> Tensor:
    """uint8 images as float32 pixels in [0, 1]."""
    return inputs.to(torch.float32) / 255.0


def fitted(inputs: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """uint8 images made to have this shape (C, H, W): made grey first, then resized, and given channels last."""
    inputs = resized(to_grey(inputs) if shape[0] == 1 else inputs, shape[1:])
    return inputs if shape[0] == 1 else to_colour(inputs)


def to_colour(inputs: Tensor) -> Tensor:
    """Three equal channels of a grey image; colour images stay as they are."""
    return inputs.expand(-1, 3, -1, -1) if inputs.shape[1] == 1 else inputs


def to_grey(inputs: Tensor) -> Tensor:
    """Luma of ITU-R 601-2 in the fixed-point arithmetic of Pillow's convert("L"); grey images stay as they are."""
    if inputs.shape[1] == 1:
        return inputs
    if inputs.shape[1] != 3:
        raise ShapeError(f"grey: images have {inputs.shape[1]} channels; only 1 or 3 can be made grey")
    red, green, blue = inputs.to(torch.int32).unbind(1)
    luma = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16
    return luma.to(torch.uint8).unsqueeze(1)


def resized(inputs: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Every channel to size x size, or (height, width), with Pillow's bilinear filter, which averages when it shrinks.

    Pillow resizes 8-bit images in integers: the same bits on every machine, which torch's interpolate does not promise.
    """
    height, width = (size, size) if isinstance(size, int) else size
    if inputs.shape[2:] == (height, width):
        return inputs
    # Pillow works channel by channel: a colour image at once gives the same bits as its channels one by one.
    colour = inputs.shape[1] == 3
    images = inputs.permute(0, 2, 3, 1).contiguous().numpy() if colour else inputs.flatten(0, 1).numpy()
    out = np.empty((len(images), height, width, *images.shape[3:]), dtype=np.uint8)
    for source, target in zip(images, out, strict=True):
        target[:] = np.asarray(Image.fromarray(source).resize((width, height), Image.Resampling.BILINEAR))
    made = torch.from_numpy(out)
    return made.permute(0, 3, 1, 2).contiguous() if colour else made.reshape(*inputs.shape[:2], height, width)
