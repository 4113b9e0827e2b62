"""The other domains of D_a that fedleak makes itself: a mask drawn over the lower face, and a box blur.

Both work on uint8 images (n, C, H, W) of the size that the networks see, grey or colour, and give uint8 images back.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedleak.errors import RefusedError

__all__ = ["MASK_DRAWS", "blurred", "masked"]

MASK_DRAWS = 6
"""Random numbers in [0, 1) that one mask takes: sideways, top, bottom, width, colour, brightness."""

CLOTH = ((148.0, 190.0, 218.0), (222.0, 230.0, 234.0))
"""From surgical blue to nearly white."""
LUMA = (0.299, 0.587, 0.114)
ARC = 3
"""The power of the curve at the chin: 2 is an ellipse, more is squarer."""
FOLDS = (0.38, 0.56, 0.74)
"""Where the cloth is pleated, from its upper to its lower edge."""


def masked(inputs: Tensor, draws: Tensor) -> Tensor:
    """Every face with a mask from nose to chin; `draws` (n, MASK_DRAWS) vary place, size and colour a little.

    The places are those of a face that fills the frame, as in ORL and in the centre of LFW: nose at 0.6 of the height,
    mouth at 0.75, chin at 0.95.
    """
    channels, height, width = inputs.shape[1:]
    varied = (draws.to(torch.float32) * 2 - 1).T.reshape(MASK_DRAWS, -1, 1, 1)
    sideways, rise, drop, broad, hue, light = varied.unbind(0)
    y = ((torch.arange(height, dtype=torch.float32) + 0.5) / height).reshape(1, -1, 1)
    x = (((torch.arange(width, dtype=torch.float32) + 0.5) / width).reshape(1, 1, -1) - 0.5 - 0.02 * sideways).abs()
    top, bottom, half = 0.61 + 0.02 * rise, 0.98 + 0.02 * drop, 0.34 + 0.02 * broad

    # The upper edge climbs over the nose; the sides are straight at the cheeks and close in an arc below the chin:
    # (x/half)^p + (depth below the cheeks)^p = 1. To first order the distance to it is (1 - sum) / p * half * width.
    edge = top - 0.09 * torch.exp(-((x / 0.13) ** 2))
    depth = ((y - top) / (bottom - top)).clamp(0, 2)
    reach = (x / half) ** ARC + ((depth - 0.2).clamp(min=0) / 0.8) ** ARC
    cloth = _covered(torch.minimum((y - edge) * height, (1 - reach) * (half * width / ARC)))

    # A loop runs from each upper corner to the ear.
    along = ((x - half * 0.97) / 0.2).clamp(0, 1)
    loop = _covered((0.012 - (y - (top + 0.03 - 0.10 * along)).abs()) * height) * (0.8 * (x > half * 0.97))
    cover = torch.maximum(cloth, loop).unsqueeze(1)

    folds = torch.stack([torch.exp(-(((depth - at) / 0.035) ** 2)) for at in FOLDS]).sum(0)
    shade = (1 + 0.05 * light) * (1 - 0.10 * folds) * (1 - 0.22 * (x / half).clamp(max=1) ** 2)
    blue, white = torch.tensor(CLOTH)
    colour = blue + (white - blue) * (hue.reshape(-1, 1) + 1) / 2
    if channels == 1:
        colour = (colour * torch.tensor(LUMA)).sum(1, keepdim=True)
    paint = colour.reshape(-1, channels, 1, 1) * shade.unsqueeze(1)
    pixels = inputs.to(torch.float32)
    return pixels.add_((paint - pixels).mul_(cover)).round_().clamp_(0, 255).to(torch.uint8)


def blurred(inputs: Tensor, side: int) -> Tensor:
    """The mean of the side x side pixels around each, exact and rounded; the image is mirrored at its borders.

    A box of even side reaches one pixel further up and to the left, as in OpenCV.
    """
    height, width = inputs.shape[2:]
    if side > min(height, width):
        raise RefusedError(f"public.blur={side}: the images are {height}x{width}; use a box that fits into them")
    sums = inputs.to(torch.int64)
    for dim, length in ((2, height), (3, width)):
        ladder = sums.index_select(dim, _mirrored(length, side)).cumsum(dim)
        ladder = torch.cat([torch.zeros_like(ladder.narrow(dim, 0, 1)), ladder], dim)
        sums = ladder.narrow(dim, side, length) - ladder.narrow(dim, 0, length)
    return ((2 * sums + side * side) // (2 * side * side)).to(torch.uint8)


def _mirrored(length: int, side: int) -> Tensor:
    """Positions from side // 2 before the first to the end of the last box, mirrored without repeating the border."""
    at = torch.arange(-(side // 2), length + side - 1 - side // 2).abs()
    return torch.where(at >= length, 2 * (length - 1) - at, at)


def _covered(inside: Tensor) -> Tensor:
    """How much of a pixel is covered, from its distance to the edge in pixels, positive inside."""
    return (inside + 0.5).clamp(0, 1)
