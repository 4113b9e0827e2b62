"""The idx format and the two data sets that come in it, on files written by hand in the published layout."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedleak.data import Request, read_dataset
from fedleak.data.idx import read_idx
from fedleak.errors import DataError


def idx_bytes(values: np.ndarray) -> bytes:
    """The format as published: 00 00, type 08 (unsigned byte), number of dimensions, big-endian sizes, values."""
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.astype(np.uint8).tobytes()


def write(folder: Path, name: str, values: np.ndarray, *, packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / (name + ".gz" if packed else name)
    file.write_bytes(gzip.compress(idx_bytes(values)) if packed else idx_bytes(values))
    return file


def pictures(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28), dtype=np.uint8)


def write_mnist(folder: Path, *, packed: bool = False, separator: str = "-") -> np.ndarray:
    images = pictures(12)
    write(folder, f"train-images{separator}idx3-ubyte", images[:8], packed=packed)
    write(folder, f"train-labels{separator}idx1-ubyte", np.arange(8), packed=packed)
    write(folder, f"t10k-images{separator}idx3-ubyte", images[8:], packed=packed)
    write(folder, f"t10k-labels{separator}idx1-ubyte", np.arange(4) + 6, packed=packed)
    return images


@settings(max_examples=30, deadline=None)
@given(values=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)), packed=st.booleans())
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, values: np.ndarray, packed: bool) -> None:
    file = write(tmp_path_factory.mktemp("idx"), "some-idx", values, packed=packed)
    assert np.array_equal(read_idx(file), values)


def test_a_file_worked_out_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "by-hand"
    file.write_bytes(bytes.fromhex("00000802 00000002 00000003 010203 0405ff"))
    assert read_idx(file).tolist() == [[1, 2, 3], [4, 5, 255]]


@pytest.mark.parametrize(
    ("content", "expected", "found"),
    [
        (b"", "an idx file of unsigned bytes", "nothing"),
        (bytes.fromhex("00000d01 00000001 00000000"), "an idx file of unsigned bytes", "00 00 0d 01"),
        (bytes.fromhex("00000800"), "1 to 4 dimensions", "00 00 08 00"),
        (bytes.fromhex("00000803 00000001"), "an idx header with 3 dimensions", "4 of 12 bytes"),
        (bytes.fromhex("00000801 00000004 010203"), "4 values of 4", "found 3"),
        (bytes.fromhex("00000801 00000002 010203"), "2 values of 2", "found more"),
        (bytes.fromhex("00000803 ffffffff ffffffff ffffffff 00"), "at most", "4294967295x4294967295x4294967295"),
    ],
    ids=["empty", "float", "no dimensions", "header cut", "truncated", "too long", "absurd header"],
)
def test_a_damaged_file_is_named_with_what_was_expected_and_found(
    tmp_path: Path, content: bytes, expected: str, found: str
) -> None:
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_idx(file)
    assert file.name in str(caught.value)
    assert expected in str(caught.value)
    assert found in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 10_000), flip=st.none() | st.integers(0, 10_000))
def test_a_cut_gzip_is_an_error_and_a_flipped_byte_never_breaks_out(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int | None
) -> None:
    file = write(tmp_path_factory.mktemp("idx"), "images", pictures(1), packed=True)
    whole = bytearray(file.read_bytes())
    if flip is None:
        file.write_bytes(whole[: cut % len(whole)])
        with pytest.raises(DataError, match="images"):
            read_idx(file)
    else:
        whole[flip % len(whole)] ^= 0x5A
        file.write_bytes(whole)
        # the gzip header has bytes that mean nothing (time, system): those flips leave the content as it was
        try:
            found = read_idx(file)
        except DataError:
            return
        assert np.array_equal(found, pictures(1))


@pytest.mark.parametrize("place", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("separator", ["-", "."])
def test_mnist_in_its_published_files(tmp_path: Path, place: str, packed: bool, separator: str) -> None:
    images = write_mnist(tmp_path / place, packed=packed, separator=separator)
    data = read_dataset("mnist", Request(tmp_path))
    assert data.test is not None
    assert np.array_equal(data.train.inputs[:, 0].numpy(), images[:8])
    assert np.array_equal(data.test.inputs[:, 0].numpy(), images[8:])
    assert data.train.labels.tolist() == list(range(8))
    assert data.test.labels.tolist() == [6, 7, 8, 9]
    assert data.classes == 10
    assert data.train.writers is None
    assert str(tmp_path) not in data.source


def test_a_half_finished_download_names_what_is_missing(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"incomplete data set.*but not t10k-labels-idx1-ubyte"):
        read_dataset("mnist", Request(tmp_path))


def test_labels_must_match_the_images_in_number_and_range(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    write(tmp_path, "train-labels-idx1-ubyte", np.arange(7))
    with pytest.raises(DataError, match="train-labels-idx1-ubyte: expected 8 integers"):
        read_dataset("mnist", Request(tmp_path))
    write(tmp_path, "train-labels-idx1-ubyte", np.arange(8) + 3)
    with pytest.raises(DataError, match="expected labels from 0 to 9, found labels from 3 to 10"):
        read_dataset("mnist", Request(tmp_path))


def test_emnist_letters_are_turned_upright_and_counted_from_zero(tmp_path: Path) -> None:
    upright = pictures(3)
    for part in ("train", "test"):
        # as published: every image column by column, and A is 1
        write(tmp_path / "emnist", f"emnist-letters-{part}-images-idx3-ubyte", upright.transpose(0, 2, 1), packed=True)
        write(tmp_path / "emnist", f"emnist-letters-{part}-labels-idx1-ubyte", np.array([1, 2, 26]), packed=True)
    data = read_dataset("emnist", Request(tmp_path))
    assert np.array_equal(data.train.inputs[:, 0].numpy(), upright)
    assert data.train.labels.tolist() == [0, 1, 25]
    assert data.classes == 26


def test_emnist_digits_keep_their_labels(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write(tmp_path, f"emnist-digits-{part}-images-idx3-ubyte", pictures(2))
        write(tmp_path, f"emnist-digits-{part}-labels-idx1-ubyte", np.array([0, 9]))
    data = read_dataset("emnist", Request(tmp_path, subset="digits"))
    assert data.train.labels.tolist() == [0, 9]
    assert data.classes == 10
    with pytest.raises(DataError, match=r"emnist_letters\.npz"):
        read_dataset("emnist", Request(tmp_path))
