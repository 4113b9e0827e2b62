"""From numpy arrays as files hold them to checked `Images`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fedleak.data.dataset import Images
from fedleak.data.files import damaged

__all__ = ["as_images"]

Array = npt.NDArray[np.generic]


def as_images(
    file: Path,
    x: Array,
    y: Array,
    writers: Array | None = None,
    *,
    domains: Array | None = None,
    classes: int | None = None,
    shape: tuple[int, int, int] | None = None,
) -> Images:
    """Images (n, H, W), (n, H, W, C) or (n, C, H, W) with their labels, checked; `file` is named in the errors.

    `classes` and `shape` are what a published data set must have; None accepts any.
    """
    if x.dtype != np.uint8:
        raise damaged(file, "pixels as uint8 from 0 to 255", f"dtype {x.dtype}")
    pixels = torch.from_numpy(np.require(_channels_first(file, x), requirements=["C", "W"]))
    if shape is not None and tuple(pixels.shape[1:]) != shape:
        raise damaged(file, f"images of shape {shape}", f"{tuple(pixels.shape[1:])}")
    labels = _one_each(file, "label", y, len(pixels))
    _check_range(file, labels, classes)
    owners = None if writers is None else torch.from_numpy(_one_each(file, "writer", writers, len(pixels)))
    kinds = None if domains is None else torch.from_numpy(_one_each(file, "domain", domains, len(pixels)))
    return Images(pixels, torch.from_numpy(labels), owners, kinds)


def _channels_first(file: Path, x: Array) -> Array:
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    elif not (x.ndim == 4 and x.shape[1] in (1, 3)):
        raise damaged(
            file, "images of shape (n, H, W), (n, H, W, C) or (n, C, H, W) with C = 1 or 3", f"shape {x.shape}"
        )
    if 0 in x.shape:
        raise damaged(file, "at least one image", f"shape {x.shape}")
    return x


def _one_each(file: Path, name: str, values: Array, count: int) -> npt.NDArray[np.int64]:
    # Keras writes CIFAR labels as a column (n, 1).
    flat = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if not np.issubdtype(flat.dtype, np.integer) or flat.shape != (count,):
        raise damaged(
            file, f"{count} integers, one {name} for each image", f"dtype {values.dtype} of shape {values.shape}"
        )
    return flat.astype(np.int64)


def _check_range(file: Path, labels: npt.NDArray[np.int64], classes: int | None) -> None:
    low, high = int(labels.min()), int(labels.max())
    # Where the number of classes is open, a label far beyond the number of images is an identity number, not a class:
    # it would make a network with millions of outputs.
    limit = classes if classes is not None else max(1000, len(labels))
    if low < 0 or high >= limit:
        raise damaged(file, f"labels from 0 to {limit - 1}", f"labels from {low} to {high}")
