"""EMNIST: letters by default, or one of the other published subsets, in either of the two published formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.io

from fedleak.data.arrays import as_images
from fedleak.data.dataset import Dataset, Images
from fedleak.data.files import Request, damaged
from fedleak.data.idx import find_idx, read_pair
from fedleak.data.npz import read_npz

__all__ = ["SUBSETS", "Subset", "kinds_of", "read"]

Subset = Literal["letters", "digits", "balanced", "byclass", "bymerge", "mnist"]

SUBSETS: dict[str, int] = {"letters": 26, "digits": 10, "balanced": 47, "byclass": 62, "bymerge": 47, "mnist": 10}
"""Subset to its number of classes."""

FOLDERS = ("", "emnist", "EMNIST")


def kinds_of(subset: str, classes: tuple[int, ...] | None) -> set[str]:
    """Which characters are in it. All subsets are choices of the same images: two that hold digits share some.

    >>> kinds_of("digits", None), kinds_of("byclass", (10, 11)), sorted(kinds_of("balanced", None))
    ({'digits'}, {'letters'}, ['digits', 'letters'])
    """
    if SUBSETS[subset] == 10 or subset == "letters":
        return {"letters" if subset == "letters" else "digits"}
    return {"digits" if label < 10 else "letters" for label in classes or range(SUBSETS[subset])}


def read(request: Request) -> Dataset | None:
    subset = request.subset or "letters"
    classes = SUBSETS[subset]
    # The letters subset counts A as 1, in both formats.
    first_label = 1 if subset == "letters" else 0
    archive = request.root / f"emnist_{subset}.npz"
    if archive.is_file():
        source = f"EMNIST {subset}, {archive.name}"
        return read_npz(archive, name="emnist", source=source, classes=classes, shape=(1, 28, 28))
    places = (*FOLDERS, "EMNIST/raw", "gzip", "emnist/gzip")
    found = find_idx([request.root / place for place in places], f"emnist-{subset}-train", f"emnist-{subset}-test")
    if found is not None:
        # The idx files hold every image transposed (columns first).
        train, test = (
            read_pair(
                found[f"{part} images"],
                found[f"{part} labels"],
                classes=classes,
                first_label=first_label,
                transposed=True,
            )
            for part in ("train", "test")
        )
        return Dataset("emnist", train, test, classes, f"EMNIST {subset}, the published idx files")
    places = (*FOLDERS, "matlab", "emnist/matlab", "EMNIST/matlab")
    for file in (request.root / place / f"emnist-{subset}.mat" for place in places):
        if file.is_file():
            train, test = _matlab(file, classes, first_label)
            return Dataset("emnist", train, test, classes, f"EMNIST {subset}, the published MATLAB file")
    return None


def _matlab(file: Path, classes: int, first_label: int) -> tuple[Images, Images]:
    """The parts of dataset.train and dataset.test. Writers are left out: the same examples as from the idx files."""
    expected = "a structure dataset with train and test, each with images (n, 784) and labels (n, 1)"
    try:
        content = scipy.io.loadmat(str(file), variable_names=["dataset"], squeeze_me=True, struct_as_record=False)
        parts = [getattr(content["dataset"], part) for part in ("train", "test")]
        arrays = [(np.atleast_2d(part.images), np.atleast_1d(part.labels)) for part in parts]
    # scipy's reader lets many kinds of error out of a damaged file, NotImplementedError for a MATLAB 7.3 one.
    except Exception as error:
        raise damaged(file, expected, type(error).__name__) from error
    train, test = (_part(file, expected, x, y, classes, first_label) for x, y in arrays)
    return train, test


def _part(file: Path, expected: str, x: Any, y: Any, classes: int, first_label: int) -> Images:
    if x.ndim != 2 or x.shape[1] != 28 * 28 or not np.issubdtype(y.dtype, np.number):
        raise damaged(file, expected, f"images of shape {x.shape} and labels of type {y.dtype}")
    labels = y.astype(np.int64)  # MATLAB's own type is a floating-point number
    if not np.array_equal(labels, y):
        raise damaged(file, expected, "labels that are no whole numbers")
    # MATLAB counts columns first.
    upright = x.reshape(-1, 28, 28).transpose(0, 2, 1)
    return as_images(file, upright, labels - first_label, classes=classes, shape=(1, 28, 28))
