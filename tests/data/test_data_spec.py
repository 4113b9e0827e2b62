"""The [data] table: what it accepts, and under which key each broken rule is reported."""

from __future__ import annotations

import typing
from typing import Any

import pytest
from pydantic import ValidationError

from fedleak.components import configure, parameters, resolved
from fedleak.data import DATASETS, DataSpec
from fedleak.data.emnist import SUBSETS, Subset


def problems(**given: Any) -> dict[str, str]:
    with pytest.raises(ValidationError) as caught:
        configure(DataSpec, given)
    return {".".join(map(str, entry["loc"])): entry["msg"] for entry in caught.value.errors()}


@pytest.mark.parametrize(
    "given",
    [
        {"name": "orl"},
        {"name": "orl", "size": 32, "clients": 40, "partition": "by_class", "classes_per_client": 2},
        {"name": "mnist", "partition": "by_writer", "writers_per_client": 3, "per_client": 50},
        {"name": "cifar10", "partition": "dirichlet", "alpha": 0.1, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.2]},
        {"name": "cifar10", "grey": True, "mean": [0.5], "std": [0.2]},
        {"name": "emnist", "subset": "digits", "classes": [9, 0]},
        {"name": "npz", "path": "mine/arrays.npz", "classes": [0, 999]},
        {"name": "imagefolder", "path": "lfw"},
    ],
)
def test_good_tables_round_trip_through_plain_data(given: dict[str, Any]) -> None:
    spec = configure(DataSpec, given)
    assert configure(DataSpec, resolved(spec)) == spec
    assert all(resolved(spec)[key] == value for key, value in given.items())


@pytest.mark.parametrize(
    ("given", "key", "words"),
    [
        ({"name": "mnits"}, "name", "did you mean 'mnist'?"),
        ({"name": "orl", "partition": "dirichlet"}, "alpha", "needs alpha"),
        ({"name": "orl", "alpha": 0.5}, "alpha", "belongs to partition = 'dirichlet'"),
        ({"name": "orl", "partition": "dirichlet", "alpha": 0}, "alpha", "greater than 0"),
        ({"name": "orl", "partition": "dirichlet", "alpha": float("inf")}, "alpha", "finite"),
        ({"name": "orl", "classes_per_client": 2}, "classes_per_client", "belongs to partition = 'by_class'"),
        ({"name": "mnist", "writers_per_client": 2}, "writers_per_client", "belongs to partition = 'by_writer'"),
        ({"name": "orl", "partition": "by_writer"}, "partition", "by_writer works with mnist, femnist, npz"),
        ({"name": "orl", "partition": "by_clas"}, "partition", "'by_class'"),
        ({"name": "npz"}, "path", "npz needs a path"),
        ({"name": "imagefolder"}, "path", "imagefolder needs a path"),
        ({"name": "mnist", "path": "mnist.npz"}, "path", "finds its own files"),
        ({"name": "npz", "path": "../x.npz"}, "path", "inside the data folder"),
        ({"name": "npz", "path": "/etc/x.npz"}, "path", "inside the data folder"),
        ({"name": "npz", "path": "C:\\x.npz"}, "path", "inside the data folder"),
        ({"name": "npz", "path": "a\\..\\..\\x.npz"}, "path", "inside the data folder"),
        ({"name": "npz", "path": " "}, "path", "inside the data folder"),
        ({"name": "mnist", "subset": "letters"}, "subset", "has no subsets"),
        ({"name": "emnist", "subset": "greek"}, "subset", "'letters'"),
        ({"name": "mnist", "classes": [3]}, "classes", "at least two labels"),
        ({"name": "mnist", "classes": [3, 3]}, "classes", "each once"),
        ({"name": "mnist", "classes": [3, 10]}, "classes", "label 10: the labels of mnist go from 0 to 9"),
        ({"name": "emnist", "classes": [3, 26]}, "classes", "from 0 to 25"),
        ({"name": "emnist", "subset": "digits", "classes": [3, 10]}, "classes", "from 0 to 9"),
        (
            {"name": "mnist", "classes": [3, 4], "partition": "by_class", "classes_per_client": 3},
            "classes_per_client",
            "more than the 2 classes",
        ),
        ({"name": "orl", "mean": [0.5]}, "std", "belong together"),
        ({"name": "orl", "std": [0.5]}, "mean", "belong together"),
        ({"name": "cifar10", "mean": [0.5, 0.5, 0.5], "std": [0.5]}, "std", "the same number"),
        ({"name": "cifar10", "mean": [0.5, 0.5], "std": [0.5, 0.5]}, "mean", "give 1 or 3"),
        ({"name": "cifar10", "grey": True, "mean": [0.5] * 3, "std": [0.5] * 3}, "mean", "give 1"),
        ({"name": "orl", "mean": [0.5], "std": [0.0]}, "std.0", "greater than 0"),
        ({"name": "orl", "size": 5000}, "size", "4096"),
        ({"name": "orl", "test_fraction": 1.0}, "test_fraction", "less than 1"),
        ({"name": "orl", "clients": 0}, "clients", "greater than 0"),
        ({"name": "orl", "cleints": 5}, "cleints", ""),
    ],
)
def test_a_broken_rule_is_reported_under_its_key(given: dict[str, Any], key: str, words: str) -> None:
    found = problems(**given)
    assert key in found
    assert words in found[key]


def test_all_broken_rules_at_once() -> None:
    found = problems(name="npz", partition="dirichlet", writers_per_client=2, mean=[1.0, 2.0], subset="letters")
    assert set(found) == {"path", "alpha", "writers_per_client", "mean", "std", "subset"}


def test_every_key_can_be_shown() -> None:
    shown = parameters(DataSpec)
    assert {"name", "clients", "partition", "alpha", "per_client", "size", "path"} <= set(shown)
    assert shown["test_fraction"]["default"] == 0.3


def test_the_subsets_that_are_typed_are_the_subsets_that_are_read() -> None:
    assert set(typing.get_args(Subset)) == set(SUBSETS)


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_describes_itself(name: str) -> None:
    source = DATASETS[name]
    assert source.description
    assert source.layout
    assert source.where
    assert source.revision >= 1
    assert source.takes <= {"path", "subset", "people"}
