"""The real data sets, where FEDLEAK_DATA points at them."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from fedleak.components import configure
from fedleak.data import Dataset, DataSpec, load, read
from fedleak.seeding import Seeds

ROOT = Path(os.environ.get("FEDLEAK_DATA") or "nowhere")


def needs(file: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (ROOT / file).exists(), reason=f"FEDLEAK_DATA does not point at a folder with {file}")


@cache
def whole(name: str) -> Dataset:
    return read(DataSpec(name=name), ROOT)


@needs("mnist.npz")
def test_mnist() -> None:
    data = whole("mnist")
    assert data.test is not None
    assert data.train.writers is not None
    assert tuple(data.train.inputs.shape) == (60000, 1, 28, 28)
    assert tuple(data.test.inputs.shape) == (10000, 1, 28, 28)
    # the first labels and the class counts of the published set
    assert data.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert torch.bincount(data.train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert len(torch.unique(data.train.writers)) == 539


@needs("mnist.npz")
def test_mnist_by_writer() -> None:
    data = load(DataSpec(name="mnist", partition="by_writer", clients=100, per_client=50), ROOT, Seeds(0))
    assert [len(examples) for examples in data.clients.values()] == [50] * 100
    writers = whole("mnist").train.writers
    assert writers is not None
    owners = [set(writers[list(index)].tolist()) for index in data.manifest.clients.values()]
    assert all(len(own) == 1 for own in owners)
    assert len(set.union(*owners)) == 100


@needs("emnist_letters.npz")
def test_emnist_letters_ten_of_them() -> None:
    spec = DataSpec(name="emnist", classes=tuple(range(10)), per_client=30, partition="by_class")
    data = load(spec, ROOT, Seeds(0))
    assert data.classes == 10
    assert all(len(examples.labels.unique()) == 1 and len(examples) == 30 for examples in data.clients.values())


@needs("cifar10.npz")
def test_cifar10() -> None:
    data = load(DataSpec(name="cifar10", partition="dirichlet", alpha=0.1), ROOT, Seeds(0))
    assert data.input_shape == (3, 32, 32)
    assert sum(len(examples) for examples in data.clients.values()) == 8000
    assert len(data.test) == 2000
    assert data.test.inputs.min() >= 0
    assert data.test.inputs.max() <= 1
    # the mean colour of the published training set is (.491, .482, .447); this is a sample of it
    held = torch.cat([examples.inputs for examples in data.clients.values()])
    assert torch.allclose(held.mean(dim=(0, 2, 3)), torch.tensor([0.491, 0.482, 0.447]), atol=0.01)


@needs("cifar100.npz")
def test_cifar100_has_no_official_split_here() -> None:
    data = load(DataSpec(name="cifar100", clients=100, per_client=50), ROOT, Seeds(0))
    assert data.manifest.test_from == "held_out"
    assert torch.bincount(data.test.labels).tolist() == [30] * 100
    assert [len(examples) for examples in data.clients.values()] == [50] * 100


@pytest.mark.slow
@needs("lfw")
def test_lfw_as_an_image_folder() -> None:
    data = read(DataSpec(name="imagefolder", path="lfw"), ROOT)
    assert tuple(data.train.inputs.shape) == (7804, 3, 64, 64)
    assert data.classes == 1000


@pytest.mark.slow
@needs("lfw")
def test_lfw_as_pli_takes_it() -> None:
    """1000 people, 200 of them targets, the masked twin of every image public; DS-FL without labels."""
    spec = {"name": "lfw", "clients": 10, "test_fraction": 0, "public": {"targets": 200}}
    data = load(configure(DataSpec, spec), ROOT, Seeds(0))
    assert data.public is not None
    assert data.public.domains is not None
    private = sum(map(len, data.clients.values()))
    assert data.public.domains.bincount().tolist() == [7804 - private, 7804]
    assert data.twins == private
    assert [len(examples.labels.unique()) for examples in data.clients.values()] == [20] * 10
    assert (data.classes, data.input_shape, len(data.targets)) == (1000, (3, 64, 64), 200)


@needs("lfw")
def test_the_most_pictured_people_of_lfw() -> None:
    data = read(DataSpec(name="lfw", people=5), ROOT)
    # Powell, Rumsfeld, Bush, Schroeder, Blair: the published counts
    assert torch.bincount(data.train.labels).tolist() == [236, 121, 530, 109, 144]


@needs("emnist_letters.npz")
@needs("mnist.npz")
def test_close_world() -> None:
    spec = {"name": "emnist", "classes": list(range(10)), "per_class": 30, "public": {"name": "mnist"}}
    data = load(configure(DataSpec, spec), ROOT, Seeds(0))
    assert data.public is not None
    assert tuple(data.public.inputs.shape) == (60000, 1, 28, 28)
    assert torch.cat([examples.labels for examples in data.clients.values()]).bincount().tolist() == [30] * 10
    assert [len(examples) for examples in data.clients.values()] == [30] * 10


@needs("tiny-imagenet-20")
@needs("mnist.npz")
def test_open_world_with_digits() -> None:
    spec = {
        "name": "mnist",
        "size": 32,
        "colour": True,
        "per_class": 100,
        "test_examples": 500,
        "public": {"name": "tiny_imagenet", "classes": [0, 1], "alpha": 0.5},
    }
    data = load(configure(DataSpec, spec), ROOT, Seeds(0))
    assert data.public is not None
    assert tuple(data.public.inputs.shape) == (1000, 3, 32, 32)
    assert data.public.domains is not None
    assert data.public.domains.bincount().tolist() == [500, 500]
    assert data.input_shape == (3, 32, 32)


@needs("tiny-imagenet-20")
def test_tiny_imagenet_first_classes() -> None:
    data = read(DataSpec(name="tiny_imagenet", classes=(0, 1)), ROOT)
    assert data.test is not None
    assert torch.bincount(data.train.labels).tolist() == [500, 500]
    assert torch.bincount(data.test.labels).tolist() == [50, 50]


@needs("tiny-imagenet-20")
def test_tiny_imagenet_as_an_image_folder() -> None:
    data = read(DataSpec(name="imagefolder", path="tiny-imagenet-20/val"), ROOT)
    assert tuple(data.train.inputs.shape) == (1000, 3, 64, 64)
    assert torch.bincount(data.train.labels).tolist() == [50] * 20


@pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn, which carries the digits, is not installed")
def test_digits(tmp_path: Path) -> None:
    data = read(DataSpec(name="digits"), tmp_path)
    assert tuple(data.train.inputs.shape) == (1797, 1, 8, 8)
    assert torch.bincount(data.train.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
