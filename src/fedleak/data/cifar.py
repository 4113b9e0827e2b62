"""CIFAR-10 and CIFAR-100: an archive, the binary version, or the Python version through the safe unpickler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedleak.data.arrays import as_images
from fedleak.data.dataset import Dataset, Images
from fedleak.data.files import Request, damaged, locate
from fedleak.data.npz import read_npz
from fedleak.data.safe_pickle import load_arrays

__all__ = ["CIFAR10", "CIFAR100", "Cifar", "read_cifar10", "read_cifar100"]

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cifar:
    """How one of the two data sets is laid out. A binary record is `label_bytes` labels, then 3072 pixels; the last
    label byte is the one that counts (CIFAR-100 writes the coarse label first)."""

    name: str
    title: str
    classes: int
    label_bytes: int
    label_key: str
    binary_folder: str
    python_folder: str
    train_files: tuple[str, ...]
    test_file: str


CIFAR10 = Cifar(
    name="cifar10",
    title="CIFAR-10",
    classes=10,
    label_bytes=1,
    label_key="labels",
    binary_folder="cifar-10-batches-bin",
    python_folder="cifar-10-batches-py",
    train_files=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test_file="test_batch",
)
CIFAR100 = Cifar(
    name="cifar100",
    title="CIFAR-100",
    classes=100,
    label_bytes=2,
    label_key="fine_labels",
    binary_folder="cifar-100-binary",
    python_folder="cifar-100-python",
    train_files=("train",),
    test_file="test",
)


def read_cifar10(request: Request) -> Dataset | None:
    return _read(CIFAR10, request)


def read_cifar100(request: Request) -> Dataset | None:
    return _read(CIFAR100, request)


def _read(cifar: Cifar, request: Request) -> Dataset | None:
    archive = request.root / f"{cifar.name}.npz"
    if archive.is_file():
        source = f"{cifar.title}, {archive.name}"
        return read_npz(archive, name=cifar.name, source=source, classes=cifar.classes, shape=SHAPE)
    return _from_batches(cifar, request, cifar.binary_folder, ".bin", _binary, "the binary version") or _from_batches(
        cifar, request, cifar.python_folder, "", _pickled, "the Python version"
    )


def _from_batches(
    cifar: Cifar,
    request: Request,
    folder: str,
    suffix: str,
    open_batch: Callable[[Cifar, Path], tuple[Bytes, Labels]],
    version: str,
) -> Dataset | None:
    needed = {name: [name + suffix] for name in (*cifar.train_files, cifar.test_file)}
    found = locate([request.root / folder, request.root / cifar.name / folder], needed)
    if found is None:
        return None

    def part(names: tuple[str, ...]) -> Images:
        batches = [_checked(cifar, found[name], *open_batch(cifar, found[name])) for name in names]
        x, y = (np.concatenate(each) for each in zip(*batches, strict=True))
        return as_images(found[names[0]], x, y, classes=cifar.classes, shape=SHAPE)

    train, test = part(cifar.train_files), part((cifar.test_file,))
    return Dataset(cifar.name, train, test, cifar.classes, f"{cifar.title}, {version}")


def _checked(cifar: Cifar, file: Path, pixels: Bytes, labels: Labels) -> tuple[Bytes, Labels]:
    """One batch as (n, 3, 32, 32), checked by itself so that an error names the batch it is in."""
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != PIXELS or len(labels) != len(pixels):
        raise damaged(
            file,
            f"rows of {PIXELS} bytes with one label each",
            f"{pixels.dtype} of shape {pixels.shape} with {len(labels)} labels",
        )
    images = pixels.reshape(-1, *SHAPE)
    as_images(file, images, labels, classes=cifar.classes, shape=SHAPE)
    return images, labels


def _binary(cifar: Cifar, file: Path) -> tuple[Bytes, Labels]:
    raw = np.fromfile(file, dtype=np.uint8)
    record = cifar.label_bytes + PIXELS
    if len(raw) == 0 or len(raw) % record:
        raise damaged(file, f"whole records of {record} bytes", f"{len(raw)} bytes")
    rows = raw.reshape(-1, record)
    return rows[:, cifar.label_bytes :], rows[:, cifar.label_bytes - 1].astype(np.int64)


def _pickled(cifar: Cifar, file: Path) -> tuple[Bytes, Labels]:
    batch = load_arrays(file)
    pixels, labels = batch.get("data"), batch.get(cifar.label_key)
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, list | np.ndarray):
        raise damaged(
            file, f"an array 'data' and a list '{cifar.label_key}'", f"{', '.join(sorted(batch)) or 'nothing'}"
        )
    if isinstance(labels, list) and not all(type(label) is int and 0 <= label < cifar.classes for label in labels):
        raise damaged(file, f"labels from 0 to {cifar.classes - 1} in '{cifar.label_key}'", "something else")
    return pixels, np.asarray(labels, dtype=np.int64)
