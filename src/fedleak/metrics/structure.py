"""Structural similarity (Wang et al. 2004): SSIM of examples, and of all pairs of two sets.

The mean over all window positions that lie inside the image, then over channels, as scikit-image does it. The default
is the paper's: an 11x11 Gaussian window of sigma 1.5 and population covariance; `window="uniform"` is 7x7.
Images smaller than the window get the largest odd window that fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedleak.errors import RefusedError
from fedleak.metrics.pixel import check_pairs, check_same
from fedleak.metrics.registry import METRICS

__all__ = ["Window", "ssim", "ssim_pairs", "window_size"]

Window = Literal["gaussian", "uniform"]

_SIZES: dict[str, int] = {"gaussian": 11, "uniform": 7}
_SIGMA = 1.5
_K1, _K2 = 0.01, 0.03
# Pixels of intermediate results at a time. On the CPU they should stay in the cache, on a GPU fill it.
_CHUNK_CPU, _CHUNK_GPU = 2**18, 2**25


def ssim(
    found: Tensor,
    original: Tensor,
    *,
    window: Window = "gaussian",
    data_range: float = 1.0,
    sample_covariance: bool = False,
) -> Tensor:
    """SSIM of every example, (n,) float64, computed in float64.

    `sample_covariance` divides by one less than the number of pixels in the window, which is scikit-image's default.
    A reconstruction with a non-finite pixel has SSIM 0.
    """
    check_same(found, original)
    lens = _Lens.of(found, window, data_range, sample_covariance, torch.float64)
    step = max(1, _chunk(found) // max(found[:1].numel(), 1))
    parts = [
        lens.compare(lens.look(one), lens.look(other))
        for one, other in zip(torch.split(found, step), torch.split(original, step), strict=True)
    ]
    return _defined(torch.cat(parts))


def ssim_pairs(
    found: Tensor,
    original: Tensor,
    *,
    window: Window = "gaussian",
    data_range: float = 1.0,
    sample_covariance: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """SSIM of every found image with every original, (len(found), len(original)).

    Means and variances are computed once per image and only the covariance per pair, in chunks: 200 x 1200 pairs of
    64x64 grey images take about six seconds on one core. float32 agrees with `ssim` to about 1e-6.
    """
    check_pairs(found, original)
    lens = _Lens.of(found, window, data_range, sample_covariance, dtype)
    result = torch.empty(len(found), len(original), dtype=dtype, device=found.device)
    if result.numel() == 0:
        return result
    one, other = lens.look(found), lens.look(original)
    images = max(1, _chunk(found) // found[:1].numel())
    wide = min(images, len(original))
    tall = max(1, images // wide)
    for i in range(0, len(found), tall):
        row = one.part(i, i + tall).unsqueezed(1)
        for j in range(0, len(original), wide):
            result[i : i + tall, j : j + wide] = lens.compare(row, other.part(j, j + wide).unsqueezed(0))
    return _defined(result)


def window_size(window: str, height: int, width: int) -> int:
    """The side of the window: its nominal size, or the largest odd number that fits the image."""
    if window not in _SIZES:
        raise RefusedError(f"window={window!r}: not one of {', '.join(_SIZES)}")
    shorter = min(height, width)
    return min(_SIZES[window], shorter if shorter % 2 else shorter - 1)


@dataclass(frozen=True, eq=False)
class _View:
    """What SSIM needs of each image alone. `pixels` and `mean` are relative to the image's own `level`."""

    pixels: Tensor
    level: Tensor
    mean: Tensor
    variance: Tensor

    def part(self, start: int, stop: int) -> _View:
        return _View(*(value[start:stop] for value in self._all()))

    def unsqueezed(self, at: int) -> _View:
        return _View(*(value.unsqueeze(at) for value in self._all()))

    def _all(self) -> tuple[Tensor, ...]:
        return (self.pixels, self.level, self.mean, self.variance)


@dataclass(frozen=True, eq=False)
class _Lens:
    """A window slid over images of one size, as two banded matrices: windowed mean = rows @ image @ columns."""

    rows: Tensor
    columns: Tensor
    covariance_scale: float
    c1: float
    c2: float

    @staticmethod
    def of(like: Tensor, window: str, data_range: float, sample_covariance: bool, dtype: torch.dtype) -> _Lens:
        height, width = like.shape[-2:]
        size = window_size(window, height, width)
        place = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
        weights = torch.exp(-0.5 * (place / _SIGMA) ** 2) if window == "gaussian" else torch.ones_like(place)
        weights = weights / weights.sum()
        count = size * size
        return _Lens(
            rows=_banded(weights, height).to(like.device, dtype),
            columns=_banded(weights, width).T.contiguous().to(like.device, dtype),
            covariance_scale=count / (count - 1) if sample_covariance and count > 1 else 1.0,
            c1=(_K1 * data_range) ** 2,
            c2=(_K2 * data_range) ** 2,
        )

    def slide(self, maps: Tensor) -> Tensor:
        return self.rows @ (maps @ self.columns)

    def look(self, images: Tensor) -> _View:
        pixels = images.to(self.rows.dtype)
        # Variances do not change when a level is subtracted, but E[x^2] - E[x]^2 loses far fewer digits.
        level = pixels.mean(dim=(-2, -1), keepdim=True)
        pixels = pixels - level
        mean = self.slide(pixels)
        variance = self.slide(pixels.square()).sub_(mean.square()).mul_(self.covariance_scale)
        return _View(pixels, level, mean, variance)

    def compare(self, one: _View, other: _View) -> Tensor:
        """Wang et al. eq. 13, averaged over positions and channels. Leading dimensions broadcast on purpose."""
        covariance = self.slide(one.pixels * other.pixels).addcmul_(one.mean, other.mean, value=-1.0)
        top = covariance.mul_(2.0 * self.covariance_scale).add_(self.c2)
        brightness, other_brightness = one.mean + one.level, other.mean + other.level
        top.mul_((brightness * other_brightness).mul_(2.0).add_(self.c1))
        bottom = brightness.square().add_(self.c1) + other_brightness.square()
        bottom.mul_((one.variance + self.c2) + other.variance)
        return top.div_(bottom).mean(dim=(-3, -2, -1))


def _banded(weights: Tensor, length: int) -> Tensor:
    size = len(weights)
    places = length - size + 1
    matrix = torch.zeros(places, length, dtype=weights.dtype)
    for offset in range(size):
        matrix[torch.arange(places), torch.arange(places) + offset] = weights[offset]
    return matrix


def _chunk(like: Tensor) -> int:
    return _CHUNK_CPU if like.device.type == "cpu" else _CHUNK_GPU


def _defined(values: Tensor) -> Tensor:
    nothing = METRICS["ssim"].nothing
    return torch.nan_to_num(values, nan=nothing, posinf=nothing, neginf=nothing)
