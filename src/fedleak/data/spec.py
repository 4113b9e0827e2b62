"""The `[data]` table of a specification."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import PurePosixPath, PureWindowsPath
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from fedleak.components import component
from fedleak.data.emnist import SUBSETS, Subset
from fedleak.data.registry import DATASETS

__all__ = ["DataSpec", "Partition"]

Partition = Literal["iid", "by_class", "dirichlet", "by_writer"]
FinitePositive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@component
class DataSpec:
    """Which data set, who holds what of it, and what is done to the pixels.

    Examples are chosen in this order: `classes`, the test part (the official one, else `test_fraction` of every class),
    the partition over `clients`, the cap `per_client`. Pixels are in [0, 1]; the model sees (pixels - mean) / std.
    """

    paper: ClassVar[str] = ""
    revision: ClassVar[int] = 1

    name: Annotated[str, Field(description="a data set of `fedleak list datasets`")]
    clients: PositiveInt = 10
    partition: Partition = "iid"
    alpha: Annotated[FinitePositive | None, Field(description="Dirichlet concentration, for dirichlet")] = None
    classes_per_client: Annotated[PositiveInt | None, Field(description="for by_class; none: disjoint sets")] = None
    writers_per_client: Annotated[PositiveInt | None, Field(description="for by_writer; none: 1")] = None
    per_client: Annotated[PositiveInt | None, Field(description="at most this many examples per client")] = None
    test_examples: Annotated[PositiveInt | None, Field(description="at most this many test examples")] = None
    test_fraction: Annotated[
        float, Field(gt=0, lt=1, description="share of every class held out where there is no official test part")
    ] = 0.3
    classes: Annotated[
        tuple[NonNegativeInt, ...] | None, Field(description="only these labels, renumbered from 0 in this order")
    ] = None
    size: Annotated[PositiveInt | None, Field(le=4096, description="resize to size x size pixels")] = None
    grey: bool = False
    mean: Annotated[tuple[FiniteFloat, ...] | None, Field(description="one number, or one per channel")] = None
    std: Annotated[tuple[FinitePositive, ...] | None, Field(description="one number, or one per channel")] = None
    path: Annotated[str | None, Field(description="file or folder in the data folder, for npz and imagefolder")] = None
    subset: Annotated[Subset | None, Field(description="for emnist; none: letters")] = None

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in DATASETS:
            close = difflib.get_close_matches(name, DATASETS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            message = f"unknown data set {name!r}, fedleak knows {', '.join(DATASETS)}{hint}"
            raise PydanticCustomError("rule", "{message}", {"message": message})
        return name

    @model_validator(mode="after")
    def _rules(self) -> Self:
        """Every broken rule at once, each under the key it belongs to."""
        broken = [
            InitErrorDetails(
                type=PydanticCustomError("rule", "{message}", {"message": message}),
                loc=(key,),
                input=getattr(self, key),
            )
            for key, message in self._broken()
        ]
        if broken:
            raise ValidationError.from_exception_data("DataSpec", broken)
        return self

    def _broken(self) -> Iterator[tuple[str, str]]:
        yield from self._broken_source()
        yield from self._broken_partition()
        yield from self._broken_pixels()

    def _broken_source(self) -> Iterator[tuple[str, str]]:
        source = DATASETS[self.name]
        if "path" in source.takes and self.path is None:
            yield "path", f"{self.name} needs a path, relative to the data folder"
        if "path" not in source.takes and self.path is not None:
            yield "path", f"{self.name} finds its own files in the data folder; remove path, or use npz or imagefolder"
        if self.path is not None and _leaves(self.path):
            yield (
                "path",
                f"{self.path!r} must be a path inside the data folder, relative to it (the folder is set by --data)",
            )
        if self.subset is not None and "subset" not in source.takes:
            yield "subset", f"{self.name} has no subsets; only emnist does"
        yield from self._broken_classes(
            SUBSETS.get(self.subset or "letters") if self.name == "emnist" else source.classes
        )

    def _broken_classes(self, known: int | None) -> Iterator[tuple[str, str]]:
        count = known
        if self.classes is not None:
            count = len(self.classes)
            if count < 2 or len(set(self.classes)) < count:
                yield "classes", f"{list(self.classes)}: give at least two labels, each once"
            beyond = [label for label in self.classes if known is not None and label >= known]
            if beyond:
                yield "classes", f"label {beyond[0]}: the labels of {self.name} go from 0 to {(known or 0) - 1}"
        if self.classes_per_client is not None and count is not None and self.classes_per_client > count:
            yield "classes_per_client", f"{self.classes_per_client} is more than the {count} classes there are"

    def _broken_partition(self) -> Iterator[tuple[str, str]]:
        if self.partition == "dirichlet" and self.alpha is None:
            yield "alpha", "partition = 'dirichlet' needs alpha, its concentration (0.1: very uneven, 100: nearly iid)"
        owners: dict[str, tuple[str, Any]] = {
            "alpha": ("dirichlet", self.alpha),
            "classes_per_client": ("by_class", self.classes_per_client),
            "writers_per_client": ("by_writer", self.writers_per_client),
        }
        for key, (owner, value) in owners.items():
            if value is not None and self.partition != owner:
                yield key, f"belongs to partition = {owner!r}, but partition = {self.partition!r}; remove one of them"
        if self.partition == "by_writer" and not DATASETS[self.name].writers:
            able = ", ".join(name for name, source in DATASETS.items() if source.writers)
            yield "partition", f"{self.name} does not know who wrote what; by_writer works with {able}"

    def _broken_pixels(self) -> Iterator[tuple[str, str]]:
        if (self.mean is None) != (self.std is None):
            missing = "std" if self.std is None else "mean"
            yield missing, "mean and std belong together; give both or neither"
        elif self.mean is not None and self.std is not None and len(self.mean) != len(self.std):
            yield "std", f"mean has {len(self.mean)} values, std has {len(self.std)}; give the same number of both"
        allowed = (1,) if self.grey else (1, 3)
        for key, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) not in allowed:
                yield key, f"{len(values)} values; give {' or '.join(map(str, allowed))}, one per channel"


def _leaves(path: str) -> bool:
    """Absolute, with a drive, or upwards: on any system."""
    for kind in (PurePosixPath, PureWindowsPath):
        pure = kind(path)
        if pure.anchor or pure.drive or ".." in pure.parts:
            return True
    return path.strip() == "" or "\0" in path
