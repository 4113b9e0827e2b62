"""EMNIST: letters by default, or one of the other published subsets."""

from __future__ import annotations

from typing import Literal

from fedleak.data.dataset import Dataset
from fedleak.data.files import Request
from fedleak.data.idx import find_idx, read_pair
from fedleak.data.npz import read_npz

__all__ = ["SUBSETS", "Subset", "read"]

Subset = Literal["letters", "digits", "balanced", "byclass", "bymerge", "mnist"]

SUBSETS: dict[str, int] = {"letters": 26, "digits": 10, "balanced": 47, "byclass": 62, "bymerge": 47, "mnist": 10}
"""Subset to its number of classes."""


def read(request: Request) -> Dataset | None:
    subset = request.subset or "letters"
    classes = SUBSETS[subset]
    archive = request.root / f"emnist_{subset}.npz"
    if archive.is_file():
        source = f"EMNIST {subset}, {archive.name}"
        return read_npz(archive, name="emnist", source=source, classes=classes, shape=(1, 28, 28))
    places = ("", "emnist", "EMNIST", "EMNIST/raw", "gzip", "emnist/gzip")
    found = find_idx([request.root / place for place in places], f"emnist-{subset}-train", f"emnist-{subset}-test")
    if found is None:
        return None
    # The idx files hold every image transposed (columns first), and the letters subset counts A as 1.
    first_label = 1 if subset == "letters" else 0
    train, test = (
        read_pair(
            found[f"{part} images"], found[f"{part} labels"], classes=classes, first_label=first_label, transposed=True
        )
        for part in ("train", "test")
    )
    return Dataset("emnist", train, test, classes, f"EMNIST {subset}, the published idx files")
