"""Numpy archives, opened without pickle: the layout of the .npz files that the named data sets may also come in."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedleak.data.arrays import as_images
from fedleak.data.dataset import Dataset, Images
from fedleak.data.files import Request, damaged

__all__ = ["read", "read_npz"]

UNREADABLE = (ValueError, OSError, EOFError, KeyError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What numpy raises on a damaged archive. ValueError also stands for an object array, which would need pickle;
RuntimeError for an encrypted member."""


def read(request: Request) -> Dataset | None:
    """Any archive at `path`: x_train, y_train, x_test, y_test, or x and y; writer_train or writer where known."""
    file = request.root / (request.path or "")
    if not file.is_file():
        return None
    return read_npz(file, name="npz", source=f"the archive {file.name}")


def read_npz(
    file: Path,
    *,
    name: str,
    source: str,
    classes: int | None = None,
    shape: tuple[int, int, int] | None = None,
) -> Dataset:
    """A data set from one archive. With `classes` and `shape` given, the archive must match them."""
    arrays = _arrays(file)
    if "x_train" in arrays:
        train = _part(file, arrays, "_train", classes, shape)
        test = _part(file, arrays, "_test", classes, shape) if "x_test" in arrays else None
    else:
        train, test = _part(file, arrays, "", classes, shape), None
    if test is not None and test.inputs.shape[1:] != train.inputs.shape[1:]:
        raise damaged(file, f"test images of shape {tuple(train.inputs.shape[1:])}", f"{tuple(test.inputs.shape[1:])}")
    highest = max(int(part.labels.max()) for part in (train, test) if part is not None)
    return Dataset(name, train, test, classes if classes is not None else highest + 1, source)


def _arrays(file: Path) -> dict[str, npt.NDArray[np.generic]]:
    wanted = ("x", "y", "writer", "x_train", "y_train", "writer_train", "x_test", "y_test", "writer_test")
    try:
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise damaged(file, "a .npz archive", "a single array")
        with loaded as archive:
            return {key: archive[key] for key in wanted if key in archive.files}
    except UNREADABLE as error:
        # numpy takes all that it does not know for a pickle, and advises to load it unsafely.
        found = "something else, or pickled objects" if "pickle" in str(error) else f"{error}"
        raise damaged(file, "a .npz archive of plain arrays", found) from error


def _part(
    file: Path,
    arrays: dict[str, npt.NDArray[np.generic]],
    suffix: str,
    classes: int | None,
    shape: tuple[int, int, int] | None,
) -> Images:
    x, y = arrays.get(f"x{suffix}"), arrays.get(f"y{suffix}")
    if x is None or y is None:
        raise damaged(
            file,
            "arrays x_train and y_train (x_test and y_test), or x and y",
            ", ".join(sorted(arrays)) or "none of them",
        )
    return as_images(file, x, y, arrays.get(f"writer{suffix}"), classes=classes, shape=shape)
