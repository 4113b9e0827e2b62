"""What the `[data]` and `[data.public]` tables have in common: naming a data set, and reporting broken rules."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, Protocol

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from fedleak.data.emnist import SUBSETS
from fedleak.data.registry import DATASETS

__all__ = ["Broken", "broken_source", "known_dataset", "labels_of", "raise_broken"]

Broken = Iterator[tuple[str, str]]
"""(key, what is wrong with it) for every broken rule; a key of an inner table is written with a dot."""


class Named(Protocol):
    """What says which data set is meant."""

    @property
    def path(self) -> str | None: ...
    @property
    def subset(self) -> str | None: ...
    @property
    def classes(self) -> tuple[int, ...] | None: ...


def known_dataset(name: str) -> str:
    """The name, or pydantic's error with the closest name there is."""
    if name not in DATASETS:
        close = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        message = f"unknown data set {name!r}, fedleak knows {', '.join(DATASETS)}{hint}"
        raise PydanticCustomError("rule", "{message}", {"message": message})
    return name


def raise_broken(title: str, owner: Any, broken: Iterable[tuple[str, str]]) -> None:
    """Every broken rule at once, each under the key it belongs to."""
    errors = []
    for key, message in broken:
        value = owner
        for part in key.split("."):
            value = getattr(value, part, None)
        kind = PydanticCustomError("rule", "{message}", {"message": message})
        errors.append(InitErrorDetails(type=kind, loc=tuple(key.split(".")), input=value))
    if errors:
        raise ValidationError.from_exception_data(title, errors)


def labels_of(name: str, subset: str | None) -> int | None:
    """How many labels a data set has, where that does not depend on its files."""
    return SUBSETS.get(subset or "letters") if name == "emnist" else DATASETS[name].classes


def broken_source(name: str, table: Named) -> Broken:
    """What is wrong with `path`, `subset` and `classes` for the data set of this name."""
    source = DATASETS[name]
    if "path" in source.takes and table.path is None:
        yield "path", f"{name} needs a path, relative to the data folder"
    if "path" not in source.takes and table.path is not None:
        yield "path", f"{name} finds its own files in the data folder; remove path, or use npz or imagefolder"
    if table.path is not None and _leaves(table.path):
        yield (
            "path",
            f"{table.path!r} must be a path inside the data folder, relative to it (the folder is set by --data)",
        )
    if table.subset is not None and "subset" not in source.takes:
        yield "subset", f"{name} has no subsets; only emnist does"
    if table.classes is not None:
        known = labels_of(name, table.subset)
        if len(table.classes) < 2 or len(set(table.classes)) < len(table.classes):
            yield "classes", f"{list(table.classes)}: give at least two labels, each once"
        beyond = [label for label in table.classes if known is not None and label >= known]
        if beyond:
            yield "classes", f"label {beyond[0]}: the labels of {name} go from 0 to {(known or 0) - 1}"


def _leaves(path: str) -> bool:
    """Absolute, with a drive, or upwards: on any system."""
    for kind in (PurePosixPath, PureWindowsPath):
        pure = kind(path)
        if pure.anchor or pure.drive or ".." in pure.parts:
            return True
    return path.strip() == "" or "\0" in path
