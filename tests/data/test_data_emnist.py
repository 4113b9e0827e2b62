"""EMNIST's MATLAB files, on small ones in the published layout; the idx files are in test_data_idx.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io

from fedleak.data import Request, read_dataset
from fedleak.errors import DataError

PICTURE = np.arange(784, dtype=np.int64).reshape(28, 28) % 251
"""No two of its rows or columns are alike, so that a turned picture is another one."""


def matlab(folder: Path, subset: str, held: list[int], **given: Any) -> Path:
    """dataset.train and .test with images (n, 784) column by column, labels (n, 1) and writers (n, 1); a mapping."""
    images = np.stack([((PICTURE + label) % 256).T.reshape(-1) for label in held]).astype(np.uint8)
    column = np.array(held, dtype=np.uint8)[:, None]
    part = {"images": images, "labels": column, "writers": column.astype(np.uint16) + 500, **given}
    mapping = np.array([[1, 65, 97], [2, 66, 98]], dtype=np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"emnist-{subset}.mat"
    scipy.io.savemat(file, {"dataset": {"train": part, "test": part, "mapping": mapping}}, do_compression=True)
    return file


@pytest.mark.parametrize("place", ["", "matlab", "emnist/matlab", "EMNIST"])
def test_letters_are_upright_and_counted_from_zero(tmp_path: Path, place: str) -> None:
    matlab(tmp_path / place, "letters", [1, 2, 26])
    data = read_dataset("emnist", Request(tmp_path))
    assert data.test is not None
    assert data.train.labels.tolist() == data.test.labels.tolist() == [0, 1, 25]
    for at, label in enumerate([1, 2, 26]):
        assert np.array_equal(data.train.inputs[at, 0].numpy(), (PICTURE + label) % 256)
    assert data.classes == 26
    assert str(tmp_path) not in data.source


def test_digits_keep_their_labels_also_as_matlabs_own_numbers_and_a_single_one(tmp_path: Path) -> None:
    matlab(tmp_path, "digits", [7], labels=np.array([[7.0]]))
    data = read_dataset("emnist", Request(tmp_path, subset="digits"))
    assert data.train.labels.tolist() == [7]
    assert np.array_equal(data.train.inputs[0, 0].numpy(), (PICTURE + 7) % 256)
    with pytest.raises(DataError, match=r"emnist-letters\.mat"):
        read_dataset("emnist", Request(tmp_path))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"images": np.zeros((2, 700), dtype=np.uint8)}, r"images of shape \(2, 700\)"),
        ({"images": np.zeros((2, 784))}, "pixels as uint8"),
        ({"labels": np.array([[1.5], [2.0]])}, "no whole numbers"),
        ({"labels": np.array([[0], [1]])}, "labels from -1 to 0"),
        ({"labels": np.array([[1], [27]])}, "labels from 0 to 26"),
        ({"labels": np.array([[1]])}, "2 integers, one label for each image"),
    ],
)
def test_a_damaged_matlab_file_is_named_with_what_it_should_hold(
    tmp_path: Path, given: dict[str, Any], words: str
) -> None:
    matlab(tmp_path, "letters", [1, 2], **given)
    with pytest.raises(DataError, match=r"emnist-letters\.mat: expected") as caught:
        read_dataset("emnist", Request(tmp_path))
    assert caught.match(words)


def test_what_is_no_emnist_file(tmp_path: Path) -> None:
    (tmp_path / "emnist-letters.mat").write_bytes(b"MATLAB 5.0 MAT-file, but not really")
    with pytest.raises(DataError, match=r"expected a structure dataset with train and test"):
        read_dataset("emnist", Request(tmp_path))
    scipy.io.savemat(tmp_path / "emnist-letters.mat", {"X": np.zeros(3)})
    with pytest.raises(DataError, match=r"expected a structure dataset with train and test"):
        read_dataset("emnist", Request(tmp_path))
    scipy.io.savemat(tmp_path / "emnist-letters.mat", {"dataset": {"train": {"images": np.zeros(3)}}})
    with pytest.raises(DataError, match=r"expected a structure dataset with train and test"):
        read_dataset("emnist", Request(tmp_path))
