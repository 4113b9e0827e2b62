"""Errors per pixel: MSE and PSNR, one number per example, and all pairs of two sets.

All functions take pixels in [0, 1], shaped (n, C, H, W), unclipped, and compute in float64. Shapes are compared before
anything is computed: a mismatch is an error and is never broadcast.

A reconstruction with a non-finite pixel is scored as if nothing had been found: MSE 1, which is 0 dB. Every result is
therefore finite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedleak.errors import DataError, ShapeError
from fedleak.metrics.registry import METRICS

__all__ = ["MSE_FLOOR", "check_pairs", "check_same", "mse", "mse_pairs", "psnr", "psnr_of", "usable"]

MSE_FLOOR = 1e-12
"""PSNR takes no MSE below this, so that a perfect reconstruction has 120 dB and not infinity."""


def mse(found: Tensor, original: Tensor) -> Tensor:
    """Mean squared error of every example, (n,) float64.

    >>> mse(torch.full((1, 1, 2, 2), 0.5), torch.zeros(1, 1, 2, 2))
    tensor([0.2500], dtype=torch.float64)
    """
    check_same(found, original)
    error = (found.double() - original.double()).square().flatten(1).mean(dim=1)
    return _defined(error)


def psnr(found: Tensor, original: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of every example in dB, 10 log10(1 / MSE), (n,) float64.

    At most 120 dB (see MSE_FLOOR); negative where the MSE exceeds 1.

    >>> psnr(torch.full((1, 1, 2, 2), 0.1, dtype=torch.float64), torch.zeros(1, 1, 2, 2))
    tensor([20.], dtype=torch.float64)
    """
    return psnr_of(mse(found, original))


def psnr_of(error: Tensor) -> Tensor:
    """MSE to dB."""
    return 10.0 * torch.log10(1.0 / error.double().clamp(min=MSE_FLOOR))


def mse_pairs(found: Tensor, original: Tensor) -> Tensor:
    """MSE of every found image with every original, (len(found), len(original)) float64."""
    check_pairs(found, original)
    one, other = found.double().flatten(1), original.double().flatten(1)
    # The matrix-product formula |a|^2 + |b|^2 - 2ab loses the small distances that PSNR is about.
    distance = torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist")
    return _defined(distance.square() / max(one.shape[1], 1))


def usable(found: Tensor) -> Tensor:
    """One bool per image: are all its pixels finite?"""
    return torch.isfinite(found).flatten(1).all(dim=1)


def check_same(found: Tensor, original: Tensor) -> None:
    """Same shape (n, C, H, W), floating pixels, finite originals: or an error."""
    if found.shape != original.shape:
        raise ShapeError(
            f"found={tuple(found.shape)}, original={tuple(original.shape)}: they must have the same shape; "
            "match them first (fedleak.metrics.match)"
        )
    check_pairs(found, original)


def check_pairs(found: Tensor, original: Tensor) -> None:
    """Images of the same shape (C, H, W) in any number, floating pixels, finite originals: or an error."""
    if found.ndim != 4 or original.ndim != 4 or found.shape[1:] != original.shape[1:]:
        raise ShapeError(
            f"found={tuple(found.shape)}, original={tuple(original.shape)}: both must be (n, C, H, W) "
            "with the same C, H and W; reshape or resize one of them"
        )
    for name, images in (("found", found), ("original", original)):
        if not images.dtype.is_floating_point:
            raise DataError(
                f"{name}.dtype={images.dtype}: pixels must be floating numbers in [0, 1]; divide bytes by 255"
            )
    if not bool(torch.isfinite(original).all()):
        raise DataError("original: holds NaN or infinity; the private examples must be finite pixels in [0, 1]")


def _defined(error: Tensor) -> Tensor:
    nothing = METRICS["mse"].nothing
    return torch.nan_to_num(error, nan=nothing, posinf=nothing)
