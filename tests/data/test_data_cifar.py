"""CIFAR in its binary and pickled versions, and the unpickler that runs nothing."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedleak.data import Request, read_dataset
from fedleak.data.safe_pickle import load_arrays
from fedleak.errors import DataError

TRAIN = [f"data_batch_{number}" for number in range(1, 6)]


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def python2_array(values: np.ndarray) -> bytes:
    """A uint8 array as Python 2 pickled it in the published files: old module name, byte strings, protocol 2."""

    def short(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    raw = values.tobytes()
    shape = b"".join(b"J" + struct.pack("<i", length) for length in values.shape)
    start = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + b"K\x00\x85" + short(b"b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + short(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + short(b"|") + b"NNN" + b"J\xff\xff\xff\xff" * 2 + b"K\x00tb"
    state = b"(K\x01" + b"(" + shape + b"t" + dtype + b"\x89" + b"T" + struct.pack("<i", len(raw)) + raw + b"t"
    return start + state + b"b"


def python2_batch(values: np.ndarray, labels: list[int], key: bytes) -> bytes:
    def short(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    names = b"](" + b"".join(short(b"picture_%d.png" % at) for at in range(len(labels))) + b"e"
    content = short(b"data") + python2_array(values) + short(key) + listed + short(b"filenames") + names
    return b"\x80\x02}(" + content + b"u."


def write_pickled_cifar10(root: Path, make: Any) -> np.ndarray:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    values = rows(12)
    for at, name in enumerate([*TRAIN, "test_batch"]):
        (folder / name).write_bytes(make(values[2 * at : 2 * at + 2], [at, 9]))
    return values


def write_binary_cifar10(root: Path) -> np.ndarray:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    values = rows(12)
    for at, name in enumerate([*TRAIN, "test_batch"]):
        labels = np.array([[at], [9]], dtype=np.uint8)
        (folder / f"{name}.bin").write_bytes(np.hstack([labels, values[2 * at : 2 * at + 2]]).tobytes())
    return values


def test_binary_cifar10_batch_after_batch(tmp_path: Path) -> None:
    values = write_binary_cifar10(tmp_path)
    data = read_dataset("cifar10", Request(tmp_path))
    assert data.test is not None
    assert np.array_equal(data.train.inputs.flatten(1).numpy(), values[:10])
    assert np.array_equal(data.test.inputs.flatten(1).numpy(), values[10:])
    assert data.train.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert data.test.labels.tolist() == [5, 9]


def test_a_record_is_red_then_green_then_blue_row_by_row(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    record = np.zeros(3074, dtype=np.uint8)
    record[0], record[1] = 19, 99  # coarse label first, then the fine one
    record[2 + 1] = 10  # red, row 0, column 1
    record[2 + 1024 + 32] = 20  # green, row 1, column 0
    record[2 + 2048 + 1023] = 30  # blue, the last pixel
    for name in ("train.bin", "test.bin"):
        (folder / name).write_bytes(record.tobytes())
    data = read_dataset("cifar100", Request(tmp_path))
    image = data.train.inputs[0]
    assert data.train.labels.tolist() == [99]
    assert data.classes == 100
    assert (int(image[0, 0, 1]), int(image[1, 1, 0]), int(image[2, 31, 31])) == (10, 20, 30)
    assert int(image.sum()) == 60


def test_a_truncated_batch_is_named(tmp_path: Path) -> None:
    write_binary_cifar10(tmp_path)
    file = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_3\.bin: expected whole records of 3073 bytes, found 6145 bytes"):
        read_dataset("cifar10", Request(tmp_path))
    file.unlink()
    with pytest.raises(DataError, match=r"incomplete data set.*but not data_batch_3\.bin"):
        read_dataset("cifar10", Request(tmp_path))


def test_the_pickled_version_as_python_2_wrote_it(tmp_path: Path) -> None:
    values = write_pickled_cifar10(tmp_path / "a", lambda x, y: python2_batch(x, y, b"labels"))
    data = read_dataset("cifar10", Request(tmp_path / "a"))
    assert np.array_equal(data.train.inputs.flatten(1).numpy(), values[:10])
    assert data.train.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    # the same content gives the same digest, whichever version it came in
    write_binary_cifar10(tmp_path / "b")
    assert read_dataset("cifar10", Request(tmp_path / "b")).digest == data.digest


def test_python_2_bytes_are_what_the_ordinary_unpickler_reads_too() -> None:
    values = rows(2)
    ordinary = pickle.loads(python2_batch(values, [3, 4], b"labels"), encoding="bytes")
    assert np.array_equal(ordinary[b"data"], values)
    assert ordinary[b"labels"] == [3, 4]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_the_pickled_version_as_todays_python_writes_it(tmp_path: Path, protocol: int) -> None:
    def make(x: np.ndarray, y: list[int]) -> bytes:
        return pickle.dumps({"data": x, "labels": y, "batch_label": "words"}, protocol=protocol)

    values = write_pickled_cifar10(tmp_path, make)
    assert np.array_equal(read_dataset("cifar10", Request(tmp_path)).train.inputs.flatten(1).numpy(), values[:10])


def test_cifar100_takes_the_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name in ("train", "test"):
        batch = {b"data": rows(2), b"coarse_labels": [1, 2], b"fine_labels": [42, 99]}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    assert read_dataset("cifar100", Request(tmp_path)).train.labels.tolist() == [42, 99]


@pytest.mark.parametrize(
    "values",
    [np.arange(6, dtype="<i4").reshape(2, 3), np.arange(6, dtype=">u2"), np.asfortranarray(rows(3))],
    ids=["int32", "big endian", "by columns"],
)
def test_plain_arrays_survive_whole(tmp_path: Path, values: np.ndarray) -> None:
    (tmp_path / "file").write_bytes(pickle.dumps({"x": values}, protocol=2))
    assert np.array_equal(load_arrays(tmp_path / "file")["x"], values)


class _Runs:
    """Unpickled by anything ordinary, this makes a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.target),))


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("where", ["instead", "beside", "inside"])
def test_a_pickle_that_runs_code_is_refused_and_does_not_run(tmp_path: Path, protocol: int, where: str) -> None:
    target = tmp_path / "pwned"
    trap = _Runs(target)
    content = {"instead": trap, "beside": {"data": rows(1), "x": trap}, "inside": {"data": [[trap]]}}[where]
    stream = pickle.dumps(content, protocol=protocol)
    (tmp_path / "file").write_bytes(stream)
    with pytest.raises(DataError, match=r"mkdir, which is neither an array"):
        load_arrays(tmp_path / "file")
    assert not target.exists()
    pickle.loads(stream)
    assert target.exists(), "the trap would have worked"


def global_call(module: str, name: str, arguments: bytes) -> bytes:
    return b"\x80\x02" + f"c{module}\n{name}\n".encode() + arguments + b"R."


@pytest.mark.parametrize(
    "stream",
    [
        global_call("builtins", "eval", b"(X\x01\x00\x00\x001t"),
        global_call("numpy", "load", b"(X\x01\x00\x00\x00xt"),
        global_call("numpy.core.multiarray", "scalar", b"(t"),
        global_call("fedleak.data.safe_pickle", "os", b"(t"),
        global_call("_codecs", "encode", b"(X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13t"),
        global_call("_codecs", "decode", b"(X\x01\x00\x00\x00at"),
        global_call("numpy.core.multiarray", "_reconstruct", b"(cnumpy\ndtype\nK\x00\x85U\x01bt"),
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n}U\x08__call__K\x01sb.",
        b"\x80\x02cnumpy\nndarray\n)\x81.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02U\x01aQ.",
        pickle.dumps({"x": np.array([{}, {}], dtype=object)}, protocol=2),
        pickle.dumps({"x": np.zeros(2, dtype="f4")}, protocol=2),
        pickle.dumps({1: 2}, protocol=2),
        pickle.dumps([1, 2], protocol=2),
        python2_array(rows(1)).replace(struct.pack("<i", 3072), struct.pack("<i", 4000), 1),
        b"",
        b"\x80\x02",
        b"not a pickle at all",
        b"\x80\x02}r\xff\xff\xff\xff.",
    ],
)
def test_everything_else_is_refused(tmp_path: Path, stream: bytes) -> None:
    file = tmp_path / "data_batch_1"
    file.write_bytes(stream)
    if stream.endswith(b"r\xff\xff\xff\xff."):
        # A memo index of four billion is only a key here, where the C unpickler would allocate 64 GB for it.
        assert load_arrays(file) == {}
        return
    with pytest.raises(DataError, match="data_batch_1: expected a pickled dict of numpy arrays and nothing else"):
        load_arrays(file)


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, 2**16), value=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_pickle_raises_nothing_but_data_errors(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: int, cut: bool
) -> None:
    stream = bytearray(python2_batch(rows(1)[:, :48], [7], b"labels"))
    at %= len(stream)
    if cut:
        del stream[at:]
    else:
        stream[at] = value
    file = tmp_path_factory.mktemp("pickle") / "batch"
    file.write_bytes(stream)
    try:
        found = load_arrays(file)
    except DataError:
        return
    assert all(isinstance(key, str) for key in found)
    assert not cut


def test_a_batch_with_wrong_content_is_named(tmp_path: Path) -> None:
    for number, batch in enumerate(
        [
            {"data": rows(2)[:, :100], "labels": [1, 2]},
            {"data": rows(2), "labels": [1, 2, 3]},
            {"data": rows(2), "labels": [1, 10]},
            {"data": rows(2), "labels": [1, 2**80]},
            {"data": rows(2).astype(np.int64), "labels": [1, 2]},
            {"data": rows(2)},
            {"labels": [1]},
        ]
    ):
        root = tmp_path / str(number)
        write_pickled_cifar10(root, lambda x, y: python2_batch(x, y, b"labels"))
        (root / "cifar-10-batches-py" / "data_batch_2").write_bytes(pickle.dumps(batch, protocol=2))
        with pytest.raises(DataError, match="data_batch_2: expected"):
            read_dataset("cifar10", Request(root))
