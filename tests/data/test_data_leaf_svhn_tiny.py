"""FEMNIST, SVHN and Tiny ImageNet on small files in their published layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from fedleak.components import configure
from fedleak.data import DataSpec, Request, load, read_dataset
from fedleak.errors import DataError
from fedleak.seeding import Seeds

# --- LEAF's FEMNIST -----------------------------------------------------------------------------------------------


def leaf(folder: Path, name: str, writers: dict[str, list[tuple[int, int]]]) -> Path:
    """A json file as LEAF writes it: (grey level, label) for every sample of every writer, uniform pictures."""
    data = {
        user: {"x": [[level / 255] * 784 for level, _ in samples], "y": [label for _, label in samples]}
        for user, samples in writers.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    content = {"users": list(writers), "num_samples": [len(s) for s in writers.values()], "user_data": data}
    (folder / name).write_text(json.dumps(content))
    return folder / name


@pytest.fixture
def femnist(tmp_path: Path) -> Path:
    leaf(
        tmp_path / "femnist" / "train",
        "all_data_0.json",
        {"f0001_41": [(255, 61), (254, 0), (253, 7)], "f0000_14": [(200, 1)] * 2},
    )
    leaf(tmp_path / "femnist" / "train", "all_data_1.json", {"f0042_07": [(150, 3)]})
    leaf(tmp_path / "femnist" / "test", "all_data_0.json", {"f0000_14": [(199, 1)], "f0001_41": [(252, 9)]})
    return tmp_path


def test_femnist_writers_and_samples_keep_their_order(femnist: Path) -> None:
    data = read_dataset("femnist", Request(femnist))
    assert tuple(data.train.inputs.shape) == (6, 1, 28, 28)
    assert data.train.inputs[:, 0, 0, 0].tolist() == [255, 254, 253, 200, 200, 150]
    assert data.train.labels.tolist() == [61, 0, 7, 1, 1, 3]
    assert data.train.writers is not None
    assert data.train.writers.tolist() == [0, 0, 0, 1, 1, 2]
    assert data.test is not None
    assert data.test.writers is not None
    assert data.test.writers.tolist() == [1, 0]
    assert data.classes == 62


def test_every_8_bit_level_survives_leafs_division(tmp_path: Path) -> None:
    leaf(tmp_path / "femnist" / "train", "a.json", {"w": [(level, 0) for level in range(256)]})
    assert read_dataset("femnist", Request(tmp_path)).train.inputs[:, 0, 5, 5].tolist() == list(range(256))


def test_a_femnist_client_holds_the_first_samples_of_its_writer(tmp_path: Path) -> None:
    """facts of fedavg_leakage: the first 50 samples of each writer, a writer with fewer keeps fewer."""
    writers = {f"w{number}": [(number * 10 + at, at) for at in range(6 - number)] for number in range(4)}
    leaf(tmp_path / "femnist" / "train", "a.json", writers)
    leaf(tmp_path / "femnist" / "test", "a.json", {"w0": [(1, 1)]})
    spec = configure(DataSpec, {"name": "femnist", "partition": "by_writer", "clients": 4, "per_client": 4})
    data = load(spec, tmp_path, Seeds(3))
    held = sorted((examples.inputs[:, 0, 0, 0] * 255).round().long().tolist() for examples in data.clients.values())
    assert held == [[0, 1, 2, 3], [10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "LEAF's layout"),
        ("[]", "LEAF's layout"),
        ('{"users": ["a"]}', "LEAF's layout"),
        ('{"users": ["a"], "user_data": {}}', "none for 'a'"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[0.5, 0.5]], "y": [1]}}}', "784 numbers from 0 to 1"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[2.0] * 784], "y": [1]}}}), "values from 2.0"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[0.5] * 784], "y": [1, 2]}}}), "labels of shape"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[0.5] * 784], "y": [62]}}}), "a label from 0 to 61"),
        (json.dumps({"users": ["a", "a"], "user_data": {"a": {"x": [[0.5] * 784], "y": [6]}}}), "every user once"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[0.5] * 784], "y": [0.5]}}}), "a label from 0 to 61"),
    ],
)
def test_a_damaged_leaf_file_is_named_with_what_it_should_hold(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "femnist" / "train").mkdir(parents=True)
    (tmp_path / "femnist" / "train" / "bad.json").write_text(content)
    leaf(tmp_path / "femnist" / "train", "all_data_0.json", {"f0001_41": [(255, 61)]})  # not this one
    with pytest.raises(DataError, match=r"train/bad\.json") as caught:
        read_dataset("femnist", Request(tmp_path))
    assert words in str(caught.value)


def test_leaf_files_without_a_single_sample_are_damaged(tmp_path: Path) -> None:
    leaf(tmp_path / "femnist" / "train", "all_data_0.json", {"f0001_41": []})
    with pytest.raises(DataError, match=r"train/all_data_0\.json.*at least one writer with a sample"):
        read_dataset("femnist", Request(tmp_path))


def test_test_files_without_training_files_are_half_a_data_set(tmp_path: Path) -> None:
    leaf(tmp_path / "femnist" / "test", "a.json", {"w": [(1, 1)]})
    with pytest.raises(DataError, match="incomplete data set"):
        read_dataset("femnist", Request(tmp_path))


# --- SVHN ---------------------------------------------------------------------------------------------------------


def svhn(folder: Path, part: str, count: int = 4, **given: Any) -> np.ndarray:
    x = np.random.default_rng(count).integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
    y = np.array([[10], [1], [9], [10]], dtype=np.uint8)[:count]
    folder.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(folder / f"{part}_32x32.mat", {"X": x, "y": y, **given})
    return x


@pytest.mark.parametrize("place", ["", "svhn"])
def test_svhn_ten_is_a_zero_and_images_come_first(tmp_path: Path, place: str) -> None:
    x = svhn(tmp_path / place, "train")
    svhn(tmp_path / place, "test", 2)
    data = read_dataset("svhn", Request(tmp_path))
    assert data.test is not None
    assert data.train.labels.tolist() == [0, 1, 9, 0]
    assert data.test.labels.tolist() == [0, 1]
    for at in range(4):
        assert np.array_equal(data.train.inputs[at].permute(1, 2, 0).numpy(), x[:, :, :, at])


def test_damaged_svhn_files(tmp_path: Path) -> None:
    svhn(tmp_path, "train")
    with pytest.raises(DataError, match=r"has train_32x32\.mat but not test_32x32\.mat"):
        read_dataset("svhn", Request(tmp_path))
    (tmp_path / "test_32x32.mat").write_bytes(b"MATLAB 5.0 MAT-file, but not really")
    with pytest.raises(DataError, match=r"test_32x32\.mat: expected a MATLAB file"):
        read_dataset("svhn", Request(tmp_path))
    svhn(tmp_path, "test", X=np.zeros((2, 32, 32, 3), dtype=np.uint8))
    with pytest.raises(DataError, match=r"expected arrays X \(32, 32, 3, n\)"):
        read_dataset("svhn", Request(tmp_path))
    svhn(tmp_path, "test", y=np.array([[11], [0], [1], [2]]))
    with pytest.raises(DataError, match="labels from 0 to 9"):
        read_dataset("svhn", Request(tmp_path))


# --- Tiny ImageNet ------------------------------------------------------------------------------------------------


def picture(file: Path, value: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 64), (value, 0, 0)).save(file, format="PNG")


@pytest.fixture(params=["published", "sorted"])
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Three classes of two pictures and one for validation, in the two layouts that go round."""
    root, notes = tmp_path / "tiny-imagenet-200", []
    for kind, wnid in enumerate(["n03", "n01", "n02"]):
        for at in range(2):
            inner = "images/" if request.param == "published" else ""
            picture(root / "train" / wnid / f"{inner}{wnid}_{at}.JPEG", 10 * kind + at)
        if request.param == "published":
            picture(root / "val" / "images" / f"val_{kind}.JPEG", 100 + kind)
            notes.append(f"val_{kind}.JPEG\t{wnid}\t0\t0\t63\t63")
        else:
            picture(root / "val" / wnid / f"val_{kind}.JPEG", 100 + kind)
    if notes:
        (root / "val" / "val_annotations.txt").write_text("\n".join(notes) + "\n")
    return tmp_path


def test_tiny_imagenet_classes_by_wordnet_id(tiny: Path) -> None:
    data = read_dataset("tiny_imagenet", Request(tiny))
    assert data.test is not None
    assert data.train.inputs[:, 0, 0, 0].tolist() == [10, 11, 20, 21, 0, 1]
    assert data.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.test.inputs[:, 0, 0, 0].tolist() == [101, 102, 100]
    assert data.test.labels.tolist() == [0, 1, 2]
    assert data.classes == 3


def test_only_the_first_classes_are_read_where_no_more_are_wanted(tiny: Path) -> None:
    data = read_dataset("tiny_imagenet", Request(tiny, classes=(1, 0)))
    assert data.train.inputs[:, 0, 0, 0].tolist() == [10, 11, 20, 21]
    assert data.classes == 2
    assert torch.equal(data.train.inputs[:, 1:], torch.zeros(4, 2, 64, 64, dtype=torch.uint8))


def test_damaged_tiny_imagenet(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    picture(root / "train" / "n01" / "images" / "a.JPEG", 1)
    (root / "val" / "images").mkdir(parents=True)
    notes = root / "val" / "val_annotations.txt"
    for line, words in [
        ("missing.JPEG\tn01\t0", r"names missing\.JPEG, which is not there"),
        ("../../x.JPEG\tn01\t0", "expected lines of picture"),
        ("no tabs", "expected lines of picture"),
    ]:
        notes.write_text(line + "\n")
        with pytest.raises(DataError, match=words):
            read_dataset("tiny_imagenet", Request(tmp_path))
    notes.unlink()
    (root / "train" / "n02").mkdir()
    with pytest.raises(DataError, match="no pictures in train/n02"):
        read_dataset("tiny_imagenet", Request(tmp_path))
