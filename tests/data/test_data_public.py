"""A public set from another data set, the mixture alpha, public writers, and the [data.public] table itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedleak.components import configure, parameters, resolved
from fedleak.data import DataSpec, FederatedData, PublicSpec, load, read, split
from fedleak.errors import DataError, RefusedError
from fedleak.seeding import Seeds


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """own.npz: 200 training and 40 test images, 4 classes, 20 writers; far.npz: 60 colour images. Level = index."""
    x = np.zeros((240, 8, 8), dtype=np.uint8)
    x[:] = np.arange(240)[:, None, None]
    y = np.arange(240) % 4
    np.savez(
        tmp_path / "own.npz",
        x_train=x[:200],
        y_train=y[:200],
        x_test=x[200:],
        y_test=y[200:],
        writer_train=np.arange(200) // 10,
    )
    np.savez(tmp_path / "far.npz", x=np.repeat(x[:60, :6, :6, None], 3, axis=3), y=np.arange(60) % 6)
    return tmp_path


def loaded(root: Path, public: dict[str, Any], seed: int = 0, **given: Any) -> FederatedData:
    table = {
        "name": "npz",
        "path": "own.npz",
        "clients": 5,
        **given,
        "public": {"name": "npz", "path": "far.npz", **public},
    }
    return load(configure(DataSpec, table), root, Seeds(seed))


def index_of(data: FederatedData) -> dict[int, list[int]]:
    """Domain to positions, from the manifest."""
    assert data.manifest.public is not None
    return {part["domain"]: part["index"] for part in data.manifest.public["parts"]}


def test_all_of_another_data_set_made_alike(root: Path) -> None:
    data = loaded(root, {}, size=4)
    assert data.public is not None
    assert tuple(data.public.inputs.shape) == (60, 1, 4, 4)
    assert (data.public.inputs[:, 0, 0, 0] * 255).round().tolist() == list(range(60))
    assert data.public.labels is None
    assert data.public.domains is not None
    assert data.public.domains.tolist() == [1] * 60
    assert (data.targets, data.twins, data.classes) == ((), 0, 4)
    assert sum(map(len, data.clients.values())) == 200


def test_grey_private_images_in_colour_beside_colour_public_ones(root: Path) -> None:
    data = loaded(root, {}, colour=True, size=16)
    assert data.input_shape == (3, 16, 16)
    assert data.public is not None
    assert tuple(data.public.inputs.shape) == (60, 3, 16, 16)
    held = data.clients["client-0"].inputs
    assert torch.equal(held[:, 0], held[:, 2])


def test_without_a_public_table_the_clients_hold_the_same(root: Path) -> None:
    spec = DataSpec(name="npz", path="own.npz", clients=5)
    assert load(spec, root, Seeds(0)).manifest.clients == loaded(root, {}).manifest.clients
    assert load(spec, root, Seeds(0)).public is None


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 1.0])
def test_alpha_is_the_share_of_the_private_distribution(root: Path, alpha: float) -> None:
    data = loaded(root, {"alpha": alpha, "examples": 40}, per_class=10)
    assert data.public is not None
    assert data.public.domains is not None
    near = round(40 * alpha)
    assert (data.public.domains == 0).sum() == near
    assert len(data.public) == 40
    mixed = index_of(data)
    held = {at for index in data.manifest.clients.values() for at in index}
    assert not held & set(mixed.get(0, []))
    assert len(held) == 40
    assert (data.public.inputs[:near, 0, 0, 0] * 255).round().long().tolist() == mixed.get(0, [])


def test_a_larger_alpha_keeps_private_data_and_adds_to_the_public(root: Path) -> None:
    some, more = (loaded(root, {"alpha": alpha, "examples": 40}, per_class=10) for alpha in (0.25, 0.75))
    assert some.manifest.clients == more.manifest.clients
    assert set(index_of(some)[0]) < set(index_of(more)[0])
    assert set(index_of(some)[1]) > set(index_of(more)[1])


def test_without_a_cap_public_images_are_taken_from_what_clients_would_hold(root: Path) -> None:
    data = loaded(root, {"alpha": 0.5, "examples": 40})
    held = {at for index in data.manifest.clients.values() for at in index}
    assert len(held) == 180
    assert held | set(index_of(data)[0]) == set(range(200))


def test_where_no_test_part_is_published_public_images_are_not_held_out_ones(root: Path) -> None:
    data = loaded(
        root, {"path": "own.npz", "alpha": 0.5, "examples": 20}, path="far.npz", test_fraction=0.5, per_class=1
    )
    held = {at for index in data.manifest.clients.values() for at in index}
    near = set(index_of(data)[0])
    assert (len(held), len(near), len(data.test)) == (6, 10, 30)
    assert not near & held
    assert not near & set(data.manifest.test)
    assert not held & set(data.manifest.test)


def test_per_class_and_the_rest_of_the_choice(root: Path) -> None:
    data = loaded(root, {"examples": 7}, per_class=6, test_examples=11, classes=[2, 0])
    assert torch.cat([examples.labels for examples in data.clients.values()]).bincount().tolist() == [6, 6]
    assert len(data.test) == 11
    assert data.public is not None
    assert len(data.public) == 7
    assert len(index_of(data)[1]) == 7


def test_public_labels_of_another_data_set(root: Path) -> None:
    with pytest.raises(RefusedError, match=r"public\.labels=true: the public labels go beyond the 4 outputs"):
        loaded(root, {"labels": True})
    data = loaded(root, {"labels": True, "classes": [5, 1]})
    assert data.public is not None
    assert data.public.labels is not None
    assert [[5, 1][label] for label in data.public.labels.tolist()] == [at % 6 for at in index_of(data)[1]]


def test_a_public_set_of_the_private_distribution_alone(root: Path) -> None:
    data = loaded(root, {"path": "own.npz", "alpha": 1, "examples": 30, "labels": True})
    held = {at for index in data.manifest.clients.values() for at in index}
    assert set(index_of(data)) == {0}
    assert not held & set(index_of(data)[0])
    assert data.public is not None
    assert data.public.labels is not None
    assert data.public.labels.tolist() == [at % 4 for at in index_of(data)[0]]


@pytest.mark.parametrize("partition", ["iid", "by_writer"])
def test_writers_are_public_or_private(root: Path, partition: str) -> None:
    data = loaded(root, {"path": "own.npz", "by_writers": True, "public_share": 0.25}, partition=partition)
    public = {at // 10 for at in index_of(data)[1]}
    private = {at // 10 for index in data.manifest.clients.values() for at in index}
    assert len(public) == 5
    assert not public & private
    assert len(private) == (15 if partition == "iid" else 5)
    assert len(index_of(data)[1]) == 50


def test_the_public_data_set_enters_the_hash(root: Path) -> None:
    before = loaded(root, {}).manifest
    archive = dict(np.load(root / "far.npz"))
    archive["x"] = archive["x"] + 1
    np.savez(root / "far.npz", **archive)
    after = loaded(root, {}).manifest
    assert before.digest == after.digest
    assert before.hash != after.hash
    (root / "copy.npz").write_bytes((root / "far.npz").read_bytes())
    assert loaded(root, {"path": "copy.npz"}).manifest.hash == after.hash


def test_what_cannot_be_mixed_is_refused(root: Path) -> None:
    with pytest.raises(RefusedError, match=r"public\.alpha=0\.5 of 400 public images: 200 must come from the private"):
        loaded(root, {"alpha": 0.5, "examples": 400}, per_class=10)
    with pytest.raises(
        RefusedError, match=r"public\.alpha=0\.1 of 100 public images: 90 must come from npz, which has 60"
    ):
        loaded(root, {"alpha": 0.1, "examples": 100}, per_class=10)
    with pytest.raises(DataError, match="data set 'cifar10' not found"):
        loaded(root, {"name": "cifar10", "path": None})
    with pytest.raises(RefusedError, match="do not say who wrote what"):
        loaded(root, {"by_writers": True}, path="far.npz")
    spec = configure(DataSpec, {"name": "npz", "path": "own.npz", "public": {"name": "npz", "path": "far.npz"}})
    with pytest.raises(RefusedError, match="give that data set to `split` too"):
        split(spec, read(spec, root), Seeds(0))


# --- the table ----------------------------------------------------------------------------------------------------

PEOPLE = {"name": "orl", "clients": 2}
GOOD: list[dict[str, Any]] = [
    {**PEOPLE, "public": {"targets": 20, "drop_twins": True, "public_share": 0.3}, "test_fraction": 0},
    {"name": "lfw", "people": 1000, "public": {"targets": 200}},
    {"name": "lag", "public": {"targets": 200, "domain": "own", "labels": False}},
    {"name": "facescrub", "public": {"targets": 200, "domain": "blur", "blur": 20, "variant": "released"}},
    {"name": "emnist", "classes": list(range(10)), "per_class": 30, "public": {"name": "mnist", "alpha": 0.0}},
    {"name": "svhn", "per_class": 1000, "public": {"name": "tiny_imagenet", "classes": list(range(20))}, "size": 32},
    {"name": "mnist", "partition": "by_writer", "public": {"name": "mnist", "by_writers": True, "public_share": 0.4}},
    {"name": "cifar10", "public": {"name": "cifar10", "alpha": 1, "examples": 1000}},
]


@pytest.mark.parametrize("given", GOOD)
def test_good_tables_round_trip_through_plain_data(given: dict[str, Any]) -> None:
    spec = configure(DataSpec, given)
    assert configure(DataSpec, resolved(spec)) == spec
    assert spec.public is not None
    assert spec.partition == ("by_class" if spec.public.of_people else given.get("partition", "iid"))


def test_the_table_can_be_built_in_python_too() -> None:
    assert DataSpec(name="orl", clients=2, public=PublicSpec(targets=3)).partition == "by_class"
    assert PublicSpec(targets=3).labelled
    assert not PublicSpec(name="mnist").labelled
    assert set(parameters(PublicSpec)) >= {"name", "targets", "domain", "drop_twins", "alpha"}


@pytest.mark.parametrize(
    ("given", "key", "words"),
    [
        ({**PEOPLE, "public": {}}, "public.targets", "is required"),
        ({**PEOPLE, "public": {"targets": 0}}, "public.targets", "greater than 0"),
        ({**PEOPLE, "public": {"targets": 40}}, "public.targets", "40 of 40 people: at least one must be left"),
        ({"name": "lfw", "people": 9, "clients": 2, "public": {"targets": 9}}, "public.targets", "9 of 9 people"),
        ({**PEOPLE, "clients": 6, "public": {"targets": 5}}, "clients", "6 clients for 5 targets"),
        ({**PEOPLE, "public": {"targets": 5}, "partition": "iid"}, "partition", "sits at one client"),
        ({**PEOPLE, "public": {"targets": 5}, "classes_per_client": 1}, "classes_per_client", "sits at one client"),
        ({**PEOPLE, "public": {"targets": 5}, "per_client": 3}, "per_client", "use per_class"),
        ({**PEOPLE, "public": {"targets": 5, "domain": "own"}}, "public.domain", "has no other domain of its own; lag"),
        ({**PEOPLE, "public": {"targets": 5, "domain": "hat"}}, "public.domain", "'mask', 'blur' or 'own'"),
        ({**PEOPLE, "public": {"targets": 5, "blur": 5}}, "public.blur", "belongs to domain = 'blur'"),
        ({**PEOPLE, "public": {"targets": 5, "variant": "paper"}}, "public.variant", "belongs to domain = 'blur'"),
        ({**PEOPLE, "public": {"targets": 5, "public_share": 0.5}}, "public.public_share", "belongs to drop_twins"),
        ({**PEOPLE, "public": {"targets": 5, "alpha": 0.5}}, "public.alpha", "give its `name`"),
        ({**PEOPLE, "public": {"targets": 5, "by_writers": True}}, "public.by_writers", "give its `name`"),
        ({**PEOPLE, "public": {"targets": 5, "tragets": 5}}, "public.tragets", ""),
        ({**PEOPLE, "public": {"name": "mnits"}}, "public.name", "did you mean 'mnist'?"),
        ({**PEOPLE, "public": {"name": "mnist", "targets": 5}}, "public.targets", "remove this"),
        ({**PEOPLE, "public": {"name": "mnist", "drop_twins": True}}, "public.drop_twins", "remove this"),
        ({**PEOPLE, "public": {"name": "mnist", "alpha": 1.5}}, "public.alpha", "less than or equal to 1"),
        ({**PEOPLE, "public": {"name": "mnist", "alpha": -0.1}}, "public.alpha", "greater than or equal to 0"),
        ({**PEOPLE, "public": {"name": "mnist", "classes": [1, 10]}}, "public.classes", "from 0 to 9"),
        ({**PEOPLE, "public": {"name": "npz"}}, "public.path", "npz needs a path"),
        ({**PEOPLE, "public": {"name": "npz", "path": "../x"}}, "public.path", "inside the data folder"),
        ({**PEOPLE, "public": {"name": "mnist", "by_writers": True}}, "public.by_writers", "knows its writers"),
        (
            {"name": "emnist", "subset": "digits", "public": {"name": "emnist", "subset": "mnist"}},
            "public.subset",
            "mnist and digits are choices of the same images, so digits of the clients and of the test set",
        ),
        (
            {"name": "emnist", "public": {"name": "emnist", "subset": "balanced", "classes": [3, 12]}},
            "public.subset",
            "so letters of the clients and of the test set would be public; take mnist",
        ),
        ({**PEOPLE, "public": {"name": "orl"}}, "public.alpha", "orl is the private data set: say alpha = 1"),
        (
            {"name": "mnist", "public": {"name": "mnist", "by_writers": True, "alpha": 0.5}},
            "public.alpha",
            "differ by their writers only",
        ),
        ({**PEOPLE, "test_fraction": 0}, "test_fraction", "leaves no test examples"),
        ({**PEOPLE, "public": {"name": "mnist"}, "test_fraction": 0}, "test_fraction", "leaves no test examples"),
        ({**PEOPLE, "people": 5}, "people", "orl has no people to choose from; lfw, lag, facescrub have"),
        ({**PEOPLE, "grey": True, "colour": True}, "colour", "remove one of them"),
    ],
)
def test_a_broken_rule_is_reported_under_its_key(given: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        configure(DataSpec, given)
    found = {".".join(map(str, entry["loc"])): entry["msg"] for entry in caught.value.errors()}
    assert words in found[key]


@pytest.mark.parametrize(
    ("own", "other"),
    [({}, {"subset": "digits"}), ({"subset": "byclass", "classes": [0, 1]}, {}), ({"subset": "mnist"}, {})],
)
def test_letters_and_digits_of_one_collection_share_no_image(own: dict[str, Any], other: dict[str, Any]) -> None:
    spec = configure(DataSpec, {"name": "emnist", **own, "public": {"name": "emnist", **other}})
    assert spec.public is not None
    assert not spec.public.of_people
