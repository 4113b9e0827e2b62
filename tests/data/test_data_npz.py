"""Numpy archives: the shared layouts, the user's own, and the ones that are refused."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedleak.data import Request, read_dataset
from fedleak.errors import DataError

X = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
Y = np.array([0, 1, 2, 0, 1, 2])


def save(root: Path, name: str = "own.npz", **arrays: np.ndarray) -> Request:
    np.savez_compressed(root / name, **arrays)
    return Request(root, path=name)


def test_train_and_test_with_writers(tmp_path: Path) -> None:
    request = save(tmp_path, x_train=X[:4], y_train=Y[:4], x_test=X[4:], y_test=Y[4:], writer_train=np.arange(4) + 7)
    data = read_dataset("npz", request)
    assert data.test is not None
    assert data.train.writers is not None
    assert np.array_equal(data.train.inputs.numpy(), X[:4].transpose(0, 3, 1, 2))
    assert np.array_equal(data.test.inputs.numpy(), X[4:].transpose(0, 3, 1, 2))
    assert data.train.writers.tolist() == [7, 8, 9, 10]
    assert data.classes == 3


def test_x_and_y_alone_have_no_official_test_part(tmp_path: Path) -> None:
    data = read_dataset("npz", save(tmp_path, x=X, y=Y))
    assert data.test is None
    assert len(data.train) == 6


@pytest.mark.parametrize(
    "x",
    [X[..., 0], X[..., :1], X[..., 0][:, None], X[..., :1].transpose(0, 3, 1, 2)],
    ids=["n h w", "n h w 1", "n 1 h w", "n 1 h w by view"],
)
def test_grey_images_in_every_common_shape_are_the_same_data(tmp_path: Path, x: np.ndarray) -> None:
    data = read_dataset("npz", save(tmp_path, x=x, y=Y))
    assert tuple(data.train.inputs.shape) == (6, 1, 5, 4)
    assert np.array_equal(data.train.inputs[:, 0].numpy(), X[..., 0])


def test_the_digest_is_of_the_content_alone(tmp_path: Path) -> None:
    first = read_dataset("npz", save(tmp_path, "a.npz", x=X, y=Y.astype(np.uint8)))
    again = read_dataset("npz", save(tmp_path, "b.npz", x=X.transpose(0, 3, 1, 2), y=Y[:, None]))
    assert first.digest == again.digest
    for changed in ({"x": X ^ 1, "y": Y}, {"x": X, "y": Y[::-1]}, {"x": X, "y": Y, "writer": Y}):
        assert read_dataset("npz", save(tmp_path, "c.npz", **changed)).digest != first.digest
    assert str(tmp_path) not in first.source


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X / 255.0, "y": Y}, "pixels as uint8 from 0 to 255, found dtype float64"),
        ({"x": X[..., 0, 0], "y": Y}, r"images of shape .* found shape \(6, 5\)"),
        ({"x": X[..., [0, 1]], "y": Y}, r"found shape \(6, 5, 4, 2\)"),
        ({"x": X[:0], "y": Y[:0]}, "at least one image"),
        ({"x": X, "y": Y[:5]}, "6 integers, one label for each image"),
        ({"x": X, "y": Y / 2}, "dtype float64"),
        ({"x": X, "y": Y - 1}, "labels from -1 to 1"),
        ({"x": X, "y": Y + 20_000_000}, "labels from 0 to 999"),
        ({"x": X, "y": Y, "writer": Y[:2]}, "one writer for each image"),
        ({"x": X}, "found x"),
        ({"x_train": X, "y_train": Y, "x_test": X}, "found x_test, x_train, y_train"),
        ({"x_train": X, "y_train": Y, "x_test": X[:, :3], "y_test": Y}, r"test images of shape \(3, 5, 4\)"),
        ({"images": X}, "found none of them"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_with_the_reason(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(DataError, match=r"own\.npz: expected.*" + message):
        read_dataset("npz", save(tmp_path, **arrays))


def test_an_object_array_is_never_unpickled(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a \.npz archive of plain arrays.*pickled objects; get"):
        read_dataset("npz", save(tmp_path, x=np.array([{}, {}], dtype=object), y=Y[:2]))
    (tmp_path / "own.npz").write_bytes(b"of another kind altogether")
    with pytest.raises(DataError, match=r"something else, or pickled objects; get the file again"):
        read_dataset("npz", Request(tmp_path, path="own.npz"))


@settings(max_examples=80, deadline=None)
@given(at=st.integers(0, 2**16), cut=st.booleans())
def test_a_damaged_archive_raises_nothing_but_data_errors(
    tmp_path_factory: pytest.TempPathFactory, at: int, cut: bool
) -> None:
    root = tmp_path_factory.mktemp("npz")
    request = save(root, x=X, y=Y)
    whole = bytearray((root / "own.npz").read_bytes())
    at %= len(whole)
    if cut:
        del whole[at:]
    else:
        whole[at] ^= 0x41
    (root / "own.npz").write_bytes(whole)
    try:
        data = read_dataset("npz", request)
    except DataError:
        return
    # a flip in what nobody reads (dates, permissions) leaves the content; a checksum guards the rest
    assert np.array_equal(data.train.inputs.numpy(), X.transpose(0, 3, 1, 2))


def test_an_encrypted_archive_is_refused(tmp_path: Path) -> None:
    request = save(tmp_path, x=X, y=Y)
    whole = bytearray((tmp_path / "own.npz").read_bytes())
    whole[whole.index(b"PK\x01\x02") + 8] |= 1  # the flag of the first entry in the central directory
    (tmp_path / "own.npz").write_bytes(whole)
    with pytest.raises(DataError, match=r"own\.npz: expected a \.npz archive of plain arrays.*encrypted"):
        read_dataset("npz", request)


def test_other_files_are_no_archives(tmp_path: Path) -> None:
    single = io.BytesIO()
    np.save(single, X)
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("x.npy", "hello")
    for name, content in (("array.npz", single.getvalue()), ("words.npz", b"hello"), ("empty.npz", b"")):
        (tmp_path / name).write_bytes(content)
    for name in ("array.npz", "words.npz", "empty.npz", "text.npz"):
        with pytest.raises(DataError, match=name):
            read_dataset("npz", Request(tmp_path, path=name))


@pytest.mark.parametrize(
    ("name", "file", "shape", "classes"),
    [
        ("mnist", "mnist.npz", (28, 28), 10),
        ("emnist", "emnist_letters.npz", (28, 28), 26),
        ("cifar10", "cifar10.npz", (32, 32, 3), 10),
        ("cifar100", "cifar100.npz", (32, 32, 3), 100),
    ],
)
def test_the_named_data_sets_take_their_archive_first_and_hold_it_to_their_shape(
    tmp_path: Path, name: str, file: str, shape: tuple[int, ...], classes: int
) -> None:
    x, y = np.ones((2, *shape), dtype=np.uint8), np.array([0, classes - 1])
    save(tmp_path, file, x_train=x, y_train=y, x_test=x, y_test=y)
    data = read_dataset(name, Request(tmp_path))
    assert data.classes == classes
    assert data.name == name
    save(tmp_path, file, x_train=x[:, 1:], y_train=y, x_test=x[:, 1:], y_test=y)
    with pytest.raises(DataError, match="expected images of shape"):
        read_dataset(name, Request(tmp_path))
    save(tmp_path, file, x_train=x, y_train=y + 1, x_test=x, y_test=y)
    with pytest.raises(DataError, match=f"expected labels from 0 to {classes - 1}"):
        read_dataset(name, Request(tmp_path))
