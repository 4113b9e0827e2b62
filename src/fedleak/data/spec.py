"""The `[data]` table of a specification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt, field_validator, model_validator
from pydantic_core import ArgsKwargs

from fedleak.components import component
from fedleak.data.emnist import Subset, kinds_of
from fedleak.data.public import PublicSpec
from fedleak.data.registry import DATASETS
from fedleak.data.rules import Broken, broken_source, known_dataset, labels_of, raise_broken

__all__ = ["DataSpec", "Partition"]

Partition = Literal["iid", "by_class", "dirichlet", "by_writer"]
FinitePositive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@component
class DataSpec:
    """Which data set, who holds what of it, and what is done to the pixels.

    Examples are chosen in this order: `people`, `classes`, what is public of them (`[data.public]`), the test part (the
    official one, else `test_fraction` of every class), the cap `per_class`, the partition over `clients`, the cap
    `per_client`. Pixels are in [0, 1]; the model sees (pixels - mean) / std.
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
    per_class: Annotated[
        PositiveInt | None, Field(description="at most this many examples per class, all clients together")
    ] = None
    test_examples: Annotated[PositiveInt | None, Field(description="at most this many test examples")] = None
    test_fraction: Annotated[
        float, Field(ge=0, lt=1, description="share of every class held out where there is no official test part")
    ] = 0.3
    classes: Annotated[
        tuple[NonNegativeInt, ...] | None, Field(description="only these labels, renumbered from 0 in this order")
    ] = None
    people: Annotated[
        PositiveInt | None,
        Field(description="those with most images, for lfw and lag (none: 1000) and facescrub (all)"),
    ] = None
    size: Annotated[PositiveInt | None, Field(le=4096, description="resize to size x size pixels")] = None
    grey: bool = False
    colour: Annotated[bool, Field(description="give grey images three equal channels")] = False
    mean: Annotated[tuple[FiniteFloat, ...] | None, Field(description="one number, or one per channel")] = None
    std: Annotated[tuple[FinitePositive, ...] | None, Field(description="one number, or one per channel")] = None
    path: Annotated[str | None, Field(description="file or folder in the data folder, for npz and imagefolder")] = None
    subset: Annotated[Subset | None, Field(description="for emnist; none: letters")] = None
    public: Annotated[PublicSpec | None, Field(description="what server and clients share")] = None

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        """Where people are private, each at one client, the partition need not be said."""
        values = dict(given.kwargs or {}) if isinstance(given, ArgsKwargs) else given
        public = values.get("public") if isinstance(values, Mapping) else None
        people = (
            public.of_people
            if isinstance(public, PublicSpec)
            else isinstance(public, Mapping) and (public.get("name") is None)
        )
        if not people:
            return given
        filled = {"partition": "by_class", **values}
        return ArgsKwargs(given.args, filled) if isinstance(given, ArgsKwargs) else filled

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return known_dataset(name)

    @model_validator(mode="after")
    def _rules(self) -> Self:
        raise_broken("DataSpec", self, self._broken())
        return self

    def _broken(self) -> Broken:
        yield from broken_source(self.name, self)
        yield from self._broken_choice()
        yield from self._broken_partition()
        yield from self._broken_pixels()
        if self.public is not None:
            rules = self._broken_people if self.public.of_people else self._broken_other
            yield from rules(self.public)

    @property
    def _labels(self) -> int | None:
        """How many labels there will be, where that is known before the files are read."""
        if self.classes is not None:
            return len(self.classes)
        return labels_of(self.name, self.subset) if self.people is None else self.people

    def _broken_choice(self) -> Broken:
        if self.people is not None and "people" not in DATASETS[self.name].takes:
            able = ", ".join(name for name, source in DATASETS.items() if "people" in source.takes)
            yield "people", f"{self.name} has no people to choose from; {able} have"
        if self.classes_per_client is not None and self._labels is not None and self.classes_per_client > self._labels:
            yield "classes_per_client", f"{self.classes_per_client} is more than the {self._labels} classes there are"
        if self.test_fraction == 0 and (self.public is None or not self.public.of_people):
            yield "test_fraction", "0 leaves no test examples; only a public set with `targets` can do without"

    def _broken_partition(self) -> Broken:
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

    def _broken_pixels(self) -> Broken:
        if (self.mean is None) != (self.std is None):
            missing = "std" if self.std is None else "mean"
            yield missing, "mean and std belong together; give both or neither"
        elif self.mean is not None and self.std is not None and len(self.mean) != len(self.std):
            yield "std", f"mean has {len(self.mean)} values, std has {len(self.std)}; give the same number of both"
        if self.grey and self.colour:
            yield "colour", "grey makes one channel, colour makes three; remove one of them"
        allowed = (1,) if self.grey else (1, 3)
        for key, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) not in allowed:
                yield key, f"{len(values)} values; give {' or '.join(map(str, allowed))}, one per channel"

    def _broken_people(self, public: PublicSpec) -> Broken:
        targets = public.targets or 0
        if self.partition != "by_class" or self.classes_per_client is not None:
            key = "partition" if self.partition != "by_class" else "classes_per_client"
            yield key, "every private image of a target sits at one client: partition = 'by_class', nothing else"
        if self.per_client is not None:
            yield "per_client", "could leave a target without a private image; use per_class"
        if self.clients > targets:
            yield (
                "clients",
                f"{self.clients} clients for {targets} targets: every client needs a target label of its own; use at "
                f"most {targets} clients, or raise public.targets",
            )
        if self._labels is not None and targets >= self._labels:
            yield (
                "public.targets",
                f"{targets} of {self._labels} people: at least one must be left whose clean images are public",
            )
        if public.domain == "own" and not DATASETS[self.name].domains:
            able = ", ".join(name for name, source in DATASETS.items() if source.domains)
            yield "public.domain", f"{self.name} has no other domain of its own; {able} has; use 'mask' or 'blur'"

    def _broken_other(self, public: PublicSpec) -> Broken:
        same = (public.name, public.path, public.subset or "letters") == (
            self.name,
            self.path,
            self.subset or "letters",
        )
        if public.by_writers and not (same and DATASETS[self.name].writers):
            yield (
                "public.by_writers",
                f"needs a data set that knows its writers, as public and as private set; these are {public.name} and "
                f"{self.name}",
            )
        if same and not public.by_writers and public.alpha != 1:
            yield (
                "public.alpha",
                f"{self.name} is the private data set: say alpha = 1 (all public images are drawn from it) or "
                "by_writers = true",
            )
        if not same and self.name == public.name == "emnist":
            own, other = self.subset or "letters", public.subset or "letters"
            if shared := sorted(kinds_of(own, self.classes) & kinds_of(other, public.classes)):
                yield (
                    "public.subset",
                    f"{other} and {own} are choices of the same images, so {' and '.join(shared)} of the clients and "
                    "of the test set would be public; take mnist as public set, or the private subset with alpha = 1, "
                    "which keeps them apart",
                )
