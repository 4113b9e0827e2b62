"""LPIPS v0.1 with AlexNet (Zhang et al. 2018) in plain torch, from `weights/lpips_alex.npz` in the data folder.

Unlike the lpips package: values are clipped to [0, 1] first (it is the picture that is judged, and a diverged
reconstruction stays finite), grey images are repeated to 3 channels, and images whose shorter side is below 64 are
upsampled bilinearly to 64, because AlexNet's last maps vanish on small ones.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedleak.metrics.pixel import check_same, usable
from fedleak.metrics.registry import METRICS, NotAvailable

__all__ = ["LPIPS_FILE", "Lpips", "load_lpips", "lpips"]

LPIPS_FILE = "weights/lpips_alex.npz"
SMALLEST_SIDE = 64
_CHUNK = 64
# Of the lpips package's scaling layer, for inputs in [-1, 1].
_SHIFT, _SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
_EPSILON = 1e-10


@dataclass(frozen=True)
class _Layer:
    """One convolution of AlexNet by its place in torchvision's `features`, and whether a max pool comes before it."""

    place: int
    kernel: int
    stride: int
    padding: int
    pooled: bool


_LAYERS = (
    _Layer(0, 11, 4, 2, False),
    _Layer(3, 5, 1, 2, True),
    _Layer(6, 3, 1, 1, True),
    _Layer(8, 3, 1, 1, False),
    _Layer(10, 3, 1, 1, False),
)


def lpips(found: Tensor, original: Tensor, data_root: Path | None) -> Tensor | NotAvailable:
    """LPIPS of every example, (n,) float64: 0 for identical pictures, higher is further apart.

    A reconstruction with a non-finite pixel scores 1. Without weights, or for images that are neither grey nor RGB,
    the result is a `NotAvailable` with the reason.
    """
    check_same(found, original)
    channels = found.shape[1]
    if channels not in (1, 3):
        return NotAvailable(f"LPIPS reads grey or RGB images and these have {channels} channels")
    network = load_lpips(data_root)
    if isinstance(network, NotAvailable):
        return network
    return network(found, original)


def load_lpips(data_root: Path | None) -> Lpips | NotAvailable:
    """The network with the weights of a data folder, read once per process."""
    if data_root is None:
        return NotAvailable(f"no data folder with {LPIPS_FILE} was given; pass --data or set FEDLEAK_DATA")
    path = (data_root / LPIPS_FILE).resolve()
    if not path.is_file():
        return NotAvailable(f"{LPIPS_FILE} is not in the data folder")
    return _load(path)


@lru_cache(maxsize=4)
def _load(path: Path) -> Lpips | NotAvailable:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return Lpips.from_arrays({name: archive[name] for name in archive.files})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as problem:
        return NotAvailable(f"{LPIPS_FILE} cannot be used ({type(problem).__name__}); fetch it again")


@dataclass(frozen=True, eq=False)
class Lpips:
    """AlexNet's five convolutions and LPIPS' five heads. The numbers of channels are those of the weights."""

    kernels: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    heads: tuple[Tensor, ...]

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> Lpips:
        """From `features.N.weight` (OIHW), `features.N.bias` and `linK.weight`; KeyError or ValueError if not so."""
        kernels, biases, heads = [], [], []
        channels = 3
        for number, layer in enumerate(_LAYERS):
            kernel = torch.from_numpy(np.array(arrays[f"features.{layer.place}.weight"], dtype=np.float32))
            bias = torch.from_numpy(np.array(arrays[f"features.{layer.place}.bias"], dtype=np.float32))
            head = torch.from_numpy(np.array(arrays[f"lin{number}.weight"], dtype=np.float32)).flatten()
            wanted = (len(bias), channels, layer.kernel, layer.kernel)
            if tuple(kernel.shape) != wanted or len(head) != len(bias):
                raise ValueError(f"features.{layer.place}: shape {tuple(kernel.shape)}, not {wanted}")
            channels = len(bias)
            kernels.append(kernel)
            biases.append(bias)
            heads.append(head)
        return Lpips(tuple(kernels), tuple(biases), tuple(heads))

    @torch.no_grad()
    def __call__(self, found: Tensor, original: Tensor) -> Tensor:
        check_same(found, original)
        batches = zip(torch.split(found, _CHUNK), torch.split(original, _CHUNK), strict=True)
        parts = [self._distance(one, other) for one, other in batches]
        nothing = found.new_tensor(METRICS["lpips"].nothing, dtype=torch.float64)
        return torch.where(usable(found), torch.cat(parts), nothing)

    def _distance(self, found: Tensor, original: Tensor) -> Tensor:
        total = torch.zeros(len(found), dtype=torch.float64, device=found.device)
        if len(found) == 0:
            return total
        one, other = _prepared(found), _prepared(original)
        for layer, kernel, bias, head in zip(_LAYERS, self.kernels, self.biases, self.heads, strict=True):
            one, other = (_activations(layer, kernel, bias, maps) for maps in (one, other))
            gap = (_unit(one) - _unit(other)).square()
            weighted = torch.einsum("nchw,c->nhw", gap, head.to(gap.device))
            total += weighted.mean(dim=(1, 2)).double()
        return total


def _prepared(images: Tensor) -> Tensor:
    pixels = torch.nan_to_num(images.float(), nan=0.0).clamp(0.0, 1.0)
    pixels = pixels.expand(-1, 3, -1, -1)
    height, width = pixels.shape[-2:]
    shorter = min(height, width)
    if shorter < SMALLEST_SIDE:
        size = (round(height * SMALLEST_SIDE / shorter), round(width * SMALLEST_SIDE / shorter))
        pixels = F.interpolate(pixels, size=size, mode="bilinear", align_corners=False)
    shift = pixels.new_tensor(_SHIFT).reshape(3, 1, 1)
    scale = pixels.new_tensor(_SCALE).reshape(3, 1, 1)
    return (2.0 * pixels - 1.0 - shift) / scale


def _activations(layer: _Layer, kernel: Tensor, bias: Tensor, maps: Tensor) -> Tensor:
    if layer.pooled:
        maps = F.max_pool2d(maps, kernel_size=3, stride=2)
    kernel, bias = kernel.to(maps.device), bias.to(maps.device)
    return F.relu(F.conv2d(maps, kernel, bias, stride=layer.stride, padding=layer.padding))


def _unit(maps: Tensor) -> Tensor:
    return maps / (maps.square().sum(dim=1, keepdim=True).sqrt() + _EPSILON)
