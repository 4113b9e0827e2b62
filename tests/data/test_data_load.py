"""From a specification to what clients hold, and the manifest that records it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedleak.data
from fedleak.components import configure
from fedleak.data import DataSpec, FederatedData, Request, data_root, load, read, read_dataset, split
from fedleak.errors import DataError, RefusedError
from fedleak.seeding import Seeds


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """own.npz: 120 training images, 40 test images, 4 classes, 12 writers; every image is its own index."""
    x = np.zeros((160, 6, 5), dtype=np.uint8)
    x[:] = np.arange(160)[:, None, None]
    y, writers = np.arange(160) % 4, np.arange(120) % 12
    np.savez(
        tmp_path / "own.npz", x_train=x[:120], y_train=y[:120], x_test=x[120:], y_test=y[120:], writer_train=writers
    )
    np.savez(tmp_path / "whole.npz", x=x, y=y)
    np.savez(
        tmp_path / "colour.npz", x=np.random.default_rng(0).integers(0, 256, (20, 6, 5, 3), dtype=np.uint8), y=y[:20]
    )
    return tmp_path


def loaded(root: Path, path: str = "own.npz", seed: int = 1, **given: Any) -> FederatedData:
    spec = configure(DataSpec, {"name": "npz", "path": path, "clients": 5, **given})
    return load(spec, root, Seeds(seed))


def identities(inputs: torch.Tensor) -> list[int]:
    return (inputs[:, 0, 0, 0] * 255).round().long().tolist()


PARTITIONS: list[dict[str, Any]] = [
    {"partition": "iid"},
    {"partition": "by_class", "clients": 4},
    {"partition": "dirichlet", "alpha": 0.3},
    {"partition": "by_writer", "writers_per_client": 2},
]


@pytest.mark.parametrize("given", PARTITIONS)
def test_clients_hold_what_the_manifest_says(root: Path, given: dict[str, Any]) -> None:
    data = loaded(root, per_client=15, **given)
    assert list(data.clients) == [f"client-{number}" for number in range(given.get("clients", 5))]
    everything: list[int] = []
    for name, examples in data.clients.items():
        index = list(data.manifest.clients[name])
        assert identities(examples.inputs) == index
        assert examples.labels.tolist() == [at % 4 for at in index]
        assert 1 <= len(examples) <= 15
        assert examples.inputs.dtype == torch.float32
        everything += index
    assert len(set(everything)) == len(everything)
    assert identities(data.test.inputs) == [120 + at for at in data.manifest.test]
    assert data.manifest.test_from == "official"
    assert (data.classes, data.input_shape, data.name) == (4, (1, 6, 5), "npz")


@pytest.mark.parametrize("given", PARTITIONS)
def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(root: Path, given: dict[str, Any]) -> None:
    one, two, other = loaded(root, **given), loaded(root, **given), loaded(root, seed=2, **given)
    assert one.manifest.hash == two.manifest.hash != other.manifest.hash
    assert all(torch.equal(one.clients[name].inputs, two.clients[name].inputs) for name in one.clients)
    assert one.manifest.clients != other.manifest.clients


def test_nothing_draws_from_the_global_generator(root: Path) -> None:
    before = torch.random.get_rng_state()
    loaded(root, "whole.npz", partition="dirichlet", alpha=0.3, test_examples=5)
    assert torch.equal(before, torch.random.get_rng_state())


def test_read_once_and_split_often_is_load(root: Path) -> None:
    spec = DataSpec(name="npz", path="own.npz", clients=3)
    dataset = read(spec, root)
    for seed in range(3):
        assert split(spec, dataset, Seeds(seed)).manifest.hash == load(spec, root, Seeds(seed)).manifest.hash


def test_without_an_official_part_a_share_of_every_class_is_held_out(root: Path) -> None:
    data = loaded(root, "whole.npz", test_fraction=0.3)
    assert data.manifest.test_from == "held_out"
    assert torch.bincount(data.test.labels).tolist() == [12, 12, 12, 12]
    trained = {at for index in data.manifest.clients.values() for at in index}
    assert trained.isdisjoint(data.manifest.test)
    assert len(trained) + len(data.manifest.test) == 160


def test_a_class_keeps_an_example_on_either_side(tmp_path: Path) -> None:
    labels = np.array([0, 0, 1, 1, 1, 2])
    np.savez(tmp_path / "few.npz", x=np.zeros((6, 4, 4), dtype=np.uint8), y=labels)
    for fraction in (0.01, 0.99):
        data = loaded(tmp_path, "few.npz", clients=1, test_fraction=fraction)
        assert torch.bincount(data.test.labels, minlength=3).tolist() in ([1, 1, 0], [1, 2, 0])
        assert sorted(set(data.clients["client-0"].labels.tolist())) == [0, 1, 2]
    np.savez(tmp_path / "one.npz", x=np.zeros((2, 4, 4), dtype=np.uint8), y=np.arange(2))
    with pytest.raises(RefusedError, match="no test examples are left"):
        loaded(tmp_path, "one.npz", clients=1)


def test_caps(root: Path) -> None:
    full, capped = loaded(root), loaded(root, per_client=7, test_examples=9)
    assert [len(examples) for examples in full.clients.values()] == [24] * 5
    assert [len(examples) for examples in capped.clients.values()] == [7] * 5
    assert (len(full.test), len(capped.test)) == (40, 9)
    # a cap takes the first of what the client would have had without it
    assert all(full.manifest.clients[name][:7] == index for name, index in capped.manifest.clients.items())


def test_writers_who_cannot_fill_a_client_come_last(tmp_path: Path) -> None:
    writers = np.repeat([1, 2, 3], [10, 2, 10])
    x = np.zeros((22, 4, 4), dtype=np.uint8)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=writers % 2, x_test=x, y_test=writers % 2, writer_train=writers)
    for seed in range(10):
        data = loaded(tmp_path, seed=seed, clients=2, partition="by_writer", per_client=5)
        assert [len(examples) for examples in data.clients.values()] == [5, 5]


def test_classes_are_renumbered_in_the_order_given(root: Path) -> None:
    data = loaded(root, classes=[3, 1])
    assert data.classes == 2
    for name, index in data.manifest.clients.items():
        assert data.clients[name].labels.tolist() == [{3: 0, 1: 1}[at % 4] for at in index]
    assert set(data.test.labels.tolist()) == {0, 1}
    with pytest.raises(RefusedError, match="label 4: the labels of npz go from 0 to 3"):
        loaded(root, classes=[0, 4])


def test_grey_then_size_then_pixels(root: Path) -> None:
    data = loaded(root, "colour.npz", grey=True, size=4)
    assert data.input_shape == (1, 4, 4)
    raw = np.load(root / "colour.npz")["x"][data.manifest.clients["client-0"][0]]
    expected = Image.fromarray(raw).convert("L").resize((4, 4), Image.Resampling.BILINEAR)
    pixels = data.clients["client-0"].inputs[0, 0]
    assert torch.equal(pixels, torch.from_numpy(np.array(expected)).float() / 255)


def test_normalisation(root: Path) -> None:
    assert loaded(root).normalisation.apply(torch.ones(1, 2, 2)).tolist() == torch.ones(1, 2, 2).tolist()
    three = loaded(root, "colour.npz", mean=[0.1, 0.2, 0.3], std=[0.5, 0.5, 0.5]).normalisation
    assert three.mean == (0.1, 0.2, 0.3)
    with pytest.raises(RefusedError, match=r"data\.mean has 3 values: the images have 1 channel"):
        loaded(root, mean=[0.1, 0.2, 0.3], std=[0.5, 0.5, 0.5])


def test_by_writer_needs_files_that_know_the_writers(root: Path) -> None:
    with pytest.raises(RefusedError, match="do not say who wrote what"):
        loaded(root, "whole.npz", partition="by_writer")


def test_the_manifest_is_json_and_every_part_of_it_enters_the_hash(root: Path) -> None:
    data = loaded(root)
    written = json.loads(json.dumps(data.manifest.as_json()))
    assert written["hash"] == data.manifest.hash
    assert written["clients"]["client-0"] == list(data.manifest.clients["client-0"])
    assert written["parameters"]["partition"] == "iid"
    assert str(root) not in json.dumps(written)
    assert "own.npz" not in json.dumps(written["parameters"])
    hashes = {
        data.manifest.hash,
        loaded(root, seed=3).manifest.hash,
        loaded(root, per_client=3).manifest.hash,
        loaded(root, test_examples=3).manifest.hash,
        loaded(root, size=4).manifest.hash,
        loaded(root, partition="dirichlet", alpha=1.0).manifest.hash,
        loaded(root, partition="dirichlet", alpha=1.1).manifest.hash,
        loaded(root, "whole.npz").manifest.hash,
    }
    assert len(hashes) == 8


def test_the_same_content_from_another_file_has_the_same_hash(root: Path) -> None:
    (root / "copy.npz").write_bytes((root / "own.npz").read_bytes())
    assert loaded(root).manifest.hash == loaded(root, "copy.npz").manifest.hash


def test_orl_as_the_default_audit_takes_it(tmp_path: Path) -> None:
    data = load(DataSpec(name="orl", size=32, clients=10, test_fraction=0.3), tmp_path, Seeds(0))
    assert data.input_shape == (1, 32, 32)
    assert torch.bincount(data.test.labels).tolist() == [3] * 40
    held = torch.cat([examples.labels for examples in data.clients.values()])
    assert torch.bincount(held).tolist() == [7] * 40
    assert [len(examples) for examples in data.clients.values()] == [28] * 10
    # Faces read in any other way are other faces: raise the reader's revision together with this.
    assert data.manifest.digest == "e3282da4a84686b0d3f7c634837b7260e298489d536eb8dc24b5b78110d1dca6"


# --- where data comes from ----------------------------------------------------------------------------------------


def test_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLEAK_DATA", "from-environment")
    assert data_root(str(tmp_path)) == tmp_path
    assert data_root(None) == Path("from-environment")
    monkeypatch.setenv("FEDLEAK_DATA", "")
    assert data_root() == Path("data")
    monkeypatch.delenv("FEDLEAK_DATA")
    assert data_root() == Path("data")
    with pytest.raises(DataError, match=r"--data .*nowhere: no such folder"):
        data_root(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("name", "given", "files", "origin"),
    [
        ("mnist", {}, ["mnist.npz", "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"], "Yann LeCun"),
        ("emnist", {}, ["emnist_letters.npz", "emnist-letters-train-images-idx3-ubyte"], "NIST"),
        ("emnist", {"subset": "digits"}, ["emnist_digits.npz", "emnist-digits-train"], "NIST"),
        ("cifar10", {}, ["cifar10.npz", "data_batch_1.bin", "cifar-10-batches-py"], "Krizhevsky"),
        ("cifar100", {}, ["cifar100.npz", "cifar-100-binary", "cifar-100-python"], "Krizhevsky"),
        ("npz", {"path": "mine.npz"}, ["mine.npz with x_train"], "numpy.savez"),
        ("imagefolder", {"path": "faces"}, ["faces/CLASS/picture.png"], "your own pictures"),
    ],
)
def test_a_missing_data_set_says_what_where_and_how(
    tmp_path: Path, name: str, given: dict[str, str], files: list[str], origin: str
) -> None:
    with pytest.raises(DataError) as caught:
        read_dataset(name, Request(tmp_path, **given))
    message = str(caught.value)
    for words in (f"data set {name!r} not found in {tmp_path}", *files, origin, "--data", "FEDLEAK_DATA"):
        assert words in message


def test_a_missing_folder_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such folder"):
        read_dataset("mnist", Request(tmp_path / "nowhere"))


def test_all_that_is_promised_can_be_imported() -> None:
    assert sorted(fedleak.data.__all__) == sorted(set(fedleak.data.__all__))
    assert all(hasattr(fedleak.data, name) for name in fedleak.data.__all__)
