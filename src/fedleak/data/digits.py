"""The 8x8 digits of scikit-learn: 1,797 rows of 64 grey levels from 0 to 16 and a label, as gzipped text."""

from __future__ import annotations

import gzip
import io
import zlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedleak.data.arrays import as_images
from fedleak.data.dataset import Dataset
from fedleak.data.files import Request, damaged

__all__ = ["read"]

FILE = "digits.csv.gz"
COLUMNS = 65
WHITE = 16
LARGEST = 2**24
"""Bytes of text. The published file unpacks to 264 kB."""


def read(request: Request) -> Dataset | None:
    places = [(request.root / FILE, "from the data folder")]
    # Looked up, not imported: scikit-learn is no dependency, only a carrier of this file.
    package = find_spec("sklearn")
    for where in (package.submodule_search_locations if package is not None else None) or ():
        places.append((Path(where) / "datasets" / "data" / FILE, "from the scikit-learn package"))
    for file, source in places:
        if file.is_file():
            return _read_file(file, f"8x8 digits, {source}")
    return None


def _read_file(file: Path, source: str) -> Dataset:
    expected = f"rows of {COLUMNS} whole numbers with commas between them"
    try:
        with gzip.open(file, "rb") as stream:
            text = stream.read(LARGEST).decode("ascii")
        if not text.strip():
            raise ValueError("no rows")
        table = np.loadtxt(io.StringIO(text), delimiter=",", ndmin=2)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise damaged(file, expected, f"{error}") from error
    if table.shape[1:] != (COLUMNS,):
        raise damaged(file, expected, f"a table of shape {table.shape}")
    levels, labels = table[:, :-1], table[:, -1]
    if not (np.array_equal(table, np.round(table)) and levels.min() >= 0 and levels.max() <= WHITE):
        raise damaged(file, f"grey levels from 0 to {WHITE}", f"values from {levels.min()} to {levels.max()}")
    # 16 is white: spread the 17 levels over 0 to 255, to the nearest step.
    pixels = np.round(levels * (255 / WHITE)).astype(np.uint8).reshape(-1, 8, 8)
    return Dataset("digits", as_images(file, pixels, labels.astype(np.int64), classes=10), None, 10, source)
