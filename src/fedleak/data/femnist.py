"""FEMNIST as LEAF writes it: json files of writers with their digits and letters, 62 classes, 28x28 on white."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedleak.data.arrays import as_images
from fedleak.data.dataset import Dataset, Images
from fedleak.data.files import Request, damaged
from fedleak.errors import DataError

__all__ = ["FOLDERS", "read"]

FOLDERS = ("femnist", "FEMNIST", "femnist/data", "leaf/data/femnist/data", "data/femnist/data")
CLASSES, SIDE = 62, 28

Writers = dict[str, int]


def read(request: Request) -> Dataset | None:
    """The samples of a writer keep the order they have in the file; writers are numbered as they come."""
    for folder in (request.root / name for name in FOLDERS):
        train, test = (sorted((folder / part).glob("*.json")) for part in ("train", "test"))
        if not train:
            if test:
                raise DataError(f"incomplete data set: {folder.name} has test/*.json but not train/*.json; get both")
            continue
        numbers: Writers = {}
        parts = [_part(files, numbers) if files else None for files in (train, test)]
        if parts[0] is None:
            raise damaged(train[0], "at least one writer with a sample", "none")
        return Dataset("femnist", parts[0], parts[1], CLASSES, f"LEAF FEMNIST, {len(train)} training file(s)")
    return None


def _part(files: list[Path], numbers: Writers) -> Images | None:
    pixels, labels, writers = [], [], []
    for file in files:
        for name, samples in _writers(file):
            x, y = _samples(file, name, samples)
            number = numbers.setdefault(name, len(numbers))
            pixels.append(x)
            labels.append(y)
            writers.append(np.full(len(y), number))
    if not pixels or sum(map(len, pixels)) == 0:
        return None
    arrays = (np.concatenate(each) for each in (pixels, labels, writers))
    return as_images(files[0], *arrays, classes=CLASSES, shape=(1, SIDE, SIDE))


def _writers(file: Path) -> list[tuple[str, Any]]:
    """(name, samples) of every writer, in the order of the list `users`."""
    expected = 'LEAF\'s layout {"users": [...], "num_samples": [...], "user_data": {user: {"x": ..., "y": ...}}}'
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(file, expected, type(error).__name__) from error
    users = content.get("users") if isinstance(content, dict) else None
    data = content.get("user_data") if isinstance(content, dict) else None
    if not isinstance(users, list) or not isinstance(data, dict) or not all(isinstance(user, str) for user in users):
        raise damaged(file, expected, f"{type(content).__name__} without these keys")
    lost = [user for user in users if user not in data]
    if lost:
        raise damaged(file, f"user_data for each of {len(users)} users", f"none for {lost[0]!r}")
    if twice := [user for user, times in Counter(users).items() if times > 1]:
        raise damaged(file, "every user once", f"{twice[0]!r} more than once")
    return [(user, data[user]) for user in users]


def _samples(file: Path, name: str, samples: Any) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    expected = f"{SIDE * SIDE} numbers from 0 to 1 and a label from 0 to {CLASSES - 1} for each sample of {name!r}"
    try:
        x = np.asarray(samples["x"], dtype=np.float64).reshape(-1, SIDE, SIDE)
        y = np.asarray(samples["y"], dtype=np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(file, expected, f"{type(error).__name__}") from error
    if y.shape != (len(x),) or not np.array_equal(y, np.round(y)):
        raise damaged(file, expected, f"{len(x)} samples and labels of shape {y.shape}")
    if not (y.size == 0 or (y.min() >= 0 and y.max() < CLASSES)):
        raise damaged(file, expected, f"labels from {y.min():g} to {y.max():g}")
    if not (x.size == 0 or (x.min() >= 0 and x.max() <= 1)):
        raise damaged(file, expected, f"values from {x.min()} to {x.max()}")
    # LEAF divides 8-bit pixels by 255: this is exact.
    return np.round(x * 255).astype(np.uint8), y.astype(np.int64)
