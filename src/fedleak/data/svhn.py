"""SVHN, cropped digits: train_32x32.mat and test_32x32.mat, X (32, 32, 3, n) uint8 and y (n, 1) with 10 for a zero."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.io

from fedleak.data.arrays import as_images
from fedleak.data.dataset import Dataset, Images
from fedleak.data.files import Request, damaged, locate

__all__ = ["read"]

TRAIN, TEST = "train_32x32.mat", "test_32x32.mat"


def read(request: Request) -> Dataset | None:
    folders = [request.root / place for place in ("", "svhn", "SVHN")]
    found = locate(folders, {"train": [TRAIN], "test": [TEST]})
    if found is None:
        return None
    return Dataset("svhn", _part(found["train"]), _part(found["test"]), 10, "SVHN, the published cropped digits")


def _part(file: Path) -> Images:
    try:
        content = scipy.io.loadmat(str(file), variable_names=["X", "y"])
    # scipy's reader lets many kinds of error out of a damaged file, NotImplementedError for a MATLAB 7.3 one.
    except Exception as error:
        raise damaged(file, "a MATLAB file with arrays X and y", type(error).__name__) from error
    x, y = content.get("X"), content.get("y")
    if x is None or y is None or x.ndim != 4 or x.shape[:3] != (32, 32, 3):
        shapes = {name: value.shape for name, value in (("X", x), ("y", y)) if value is not None}
        raise damaged(file, "arrays X (32, 32, 3, n) and y (n, 1)", f"{shapes or 'none of them'}")
    labels = y.astype(np.int64)
    return as_images(file, x.transpose(3, 2, 0, 1), np.where(labels == 10, 0, labels), classes=10)
