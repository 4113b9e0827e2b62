"""The idx format of the MNIST family: four magic bytes, big-endian dimensions, then the values. Plain or gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from fedleak.data.arrays import as_images
from fedleak.data.dataset import Images
from fedleak.data.files import damaged, locate

__all__ = ["find_idx", "read_idx", "read_pair"]

UNSIGNED_BYTE = 0x08
LARGEST = 2**33
"""Bytes. EMNIST byclass, the largest of the family, has 547 million; a header that promises more is damaged."""


def read_idx(file: Path) -> npt.NDArray[np.uint8]:
    """An array of unsigned bytes. Reads what the header promises and one byte more, never what a bomb unpacks to."""
    try:
        with cast(IO[bytes], gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb")) as stream:
            shape = _header(file, stream)
            size = math.prod(shape)
            body = stream.read(size + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise damaged(file, "a whole idx file", f"{error}") from error
    if len(body) != size:
        more = "more" if len(body) > size else f"{len(body)}"
        raise damaged(file, f"{size} values of {_times(shape)}, as its header says", more)
    return np.frombuffer(bytearray(body), dtype=np.uint8).reshape(shape)


def _header(file: Path, stream: IO[bytes]) -> tuple[int, ...]:
    magic = stream.read(4)
    if len(magic) != 4 or magic[:3] != bytes([0, 0, UNSIGNED_BYTE]) or not 1 <= magic[3] <= 4:
        raise damaged(
            file, "an idx file of unsigned bytes (00 00 08 and 1 to 4 dimensions)", magic.hex(" ") or "nothing"
        )
    raw = stream.read(4 * magic[3])
    if len(raw) != 4 * magic[3]:
        raise damaged(file, f"an idx header with {magic[3]} dimensions", f"{len(raw)} of {4 * magic[3]} bytes")
    shape = struct.unpack(f">{magic[3]}I", raw)
    if math.prod(shape) > LARGEST:
        raise damaged(file, f"at most {LARGEST} values", _times(shape))
    return shape


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def find_idx(folders: list[Path], train: str, test: str) -> dict[str, Path] | None:
    """The four files of one data set: train-images-idx3-ubyte and so on; - or . before idx, with or without .gz."""

    def names(prefix: str, kind: str, rank: int) -> list[str]:
        stems = [f"{prefix}-{kind}{mark}idx{rank}-ubyte" for mark in "-."]
        return [stem + suffix for stem in stems for suffix in ("", ".gz")]

    return locate(
        folders,
        {
            "train images": names(train, "images", 3),
            "train labels": names(train, "labels", 1),
            "test images": names(test, "images", 3),
            "test labels": names(test, "labels", 1),
        },
    )


def read_pair(images: Path, labels: Path, *, classes: int, first_label: int = 0, transposed: bool = False) -> Images:
    """An image file with its label file. `first_label` is what the file calls class 0."""
    x = read_idx(images)
    if x.ndim != 3:
        raise damaged(images, "3 dimensions", f"{x.ndim}")
    y = read_idx(labels).astype(np.int64) - first_label
    return as_images(labels, x.transpose(0, 2, 1) if transposed else x, y, classes=classes, shape=(1, 28, 28))
