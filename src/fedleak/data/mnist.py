"""MNIST: the archive that also knows the writers, or the four published idx files."""

from __future__ import annotations

from fedleak.data.dataset import Dataset
from fedleak.data.files import Request
from fedleak.data.idx import find_idx, read_pair
from fedleak.data.npz import read_npz

__all__ = ["read"]


def read(request: Request) -> Dataset | None:
    archive = request.root / "mnist.npz"
    if archive.is_file():
        return read_npz(archive, name="mnist", source="MNIST, mnist.npz", classes=10, shape=(1, 28, 28))
    folders = [request.root, request.root / "mnist", request.root / "MNIST" / "raw"]
    found = find_idx(folders, "train", "t10k")
    if found is None:
        return None
    train = read_pair(found["train images"], found["train labels"], classes=10)
    test = read_pair(found["test images"], found["test labels"], classes=10)
    return Dataset("mnist", train, test, 10, "MNIST, the published idx files")
