"""From a `[data]` table to what every client holds, the test set and the public set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedleak.components import resolved
from fedleak.data.assembly import pixels_of, public_set
from fedleak.data.dataset import Dataset, Images
from fedleak.data.division import Division, divide, wanted_labels
from fedleak.data.drawing import renumbered
from fedleak.data.files import Request
from fedleak.data.manifest import SplitManifest
from fedleak.data.people import divide_people
from fedleak.data.registry import read_dataset
from fedleak.data.spec import DataSpec
from fedleak.errors import RefusedError
from fedleak.seeding import Seeds
from fedleak.types import Examples, Normalisation, PublicSet

__all__ = ["FederatedData", "load", "read", "read_public", "split", "split_manifest"]


@dataclass(frozen=True, eq=False)
class FederatedData:
    """What every client holds ("client-0", "client-1", ...) and the common test set, as pixels in [0, 1].

    `public` is what server and clients share, where the specification has a `[data.public]` table; `targets` are the
    labels that are private (empty: all), `twins` how many of the clients' images are public too, seen through the other
    domain.
    """

    name: str
    clients: dict[str, Examples]
    test: Examples
    classes: int
    input_shape: tuple[int, int, int]
    normalisation: Normalisation
    manifest: SplitManifest
    public: PublicSet | None = None
    targets: tuple[int, ...] = ()
    twins: int = 0
    public_labels: Tensor | None = None
    """Whom the public images show, where `public` does not say so: for the evaluator. Private people first, numbered as
    the clients number them, then the others."""


def load(spec: DataSpec, root: Path, seeds: Seeds) -> FederatedData:
    """Read the data set and split it. With many seeds over one data set, `read` once and `split` for each."""
    return split(spec, read(spec, root), seeds, read_public(spec, root))


def read(spec: DataSpec, root: Path) -> Dataset:
    """The whole data set that a specification names."""
    request = Request(
        root, path=spec.path, subset=spec.subset, size=spec.size, people=spec.people, classes=spec.classes
    )
    return read_dataset(spec.name, request)


def read_public(spec: DataSpec, root: Path) -> Dataset | None:
    """The other data set that the public set comes from, where it does."""
    public = spec.public
    if public is None or public.name is None or public.by_writers:
        return None
    request = Request(root, path=public.path, subset=public.subset, size=spec.size, classes=public.classes)
    return read_dataset(public.name, request)


def split_manifest(spec: DataSpec, root: Path, seeds: Seeds) -> SplitManifest:
    """The record of the split that `load` makes, without making any pixels."""
    dataset, other = read(spec, root), read_public(spec, root)
    return _manifest(spec, dataset, other, seeds, _divided(spec, dataset, seeds.under("data"), other))


def split(spec: DataSpec, dataset: Dataset, seeds: Seeds, other: Dataset | None = None) -> FederatedData:
    """Deal a data set out to the clients; `other` is what `read_public` gives.

    Only the examples that somebody takes become floating point.
    """
    streams = seeds.under("data")
    if other is None and spec.public is not None and spec.public.name is not None and not spec.public.by_writers:
        raise RefusedError(
            f"public.name={spec.public.name!r}: give that data set to `split` too (`read_public` reads it)"
        )
    division = _divided(spec, dataset, streams, other)
    shape = _shape(spec, dataset.train)
    classes = dataset.classes if spec.classes is None else len(spec.classes)
    targets, numbers = division.targets, None
    if targets and spec.public is not None and not spec.public.labelled:
        # Nobody but the clients has labels: the networks know the private ones only (DS-FL).
        numbers, classes, targets = targets, len(targets), tuple(range(len(targets)))

    def examples(images: Images, index: Tensor) -> Examples:
        labels = renumbered(wanted_labels(spec, images, dataset.classes)[index], numbers) if len(index) else index
        return Examples(pixels_of(images, index, shape), labels)

    tested = dataset.train if dataset.test is None or targets else dataset.test
    return FederatedData(
        name=dataset.name,
        clients={name: examples(dataset.train, index) for name, index in division.clients.items()},
        test=examples(tested, division.test),
        classes=classes,
        input_shape=shape,
        normalisation=_normalisation(spec, shape[0]),
        manifest=_manifest(spec, dataset, other, seeds, division),
        public=None if spec.public is None else public_set(spec, dataset, other, division, shape, classes, streams),
        targets=targets,
        twins=division.twins,
        public_labels=None if numbers is None else _whom(spec, dataset, division, numbers),
    )


def _whom(spec: DataSpec, dataset: Dataset, division: Division, private: tuple[int, ...]) -> Tensor:
    labels = wanted_labels(spec, dataset.train, dataset.classes)
    shown = torch.cat([labels[part.index] for part in division.public])
    others = sorted(set(shown.tolist()) - set(private))
    return renumbered(shown, (*private, *others))


def _divided(spec: DataSpec, dataset: Dataset, streams: Seeds, other: Dataset | None) -> Division:
    if spec.public is not None and spec.public.of_people:
        return divide_people(spec, dataset, streams)
    return divide(spec, dataset, streams, other)


def _shape(spec: DataSpec, images: Images) -> tuple[int, int, int]:
    """What the images will be like: (channels, height, width)."""
    channels, height, width = images.inputs.shape[1:]
    if spec.size is not None:
        height = width = spec.size
    return 1 if spec.grey else 3 if spec.colour else channels, height, width


def _manifest(
    spec: DataSpec, dataset: Dataset, other: Dataset | None, seeds: Seeds, division: Division
) -> SplitManifest:
    # Where the file lay does not matter: the digest says what was in it.
    parameters: dict[str, Any] = {
        key: value for key, value in resolved(spec).items() if key not in ("name", "path", "public")
    }
    public: dict[str, Any] | None = None
    if spec.public is not None:
        parameters["public"] = {key: value for key, value in resolved(spec.public).items() if key != "path"}
        sources = [dataset if part.private or other is None else other for part in division.public]
        public = {
            "parts": [
                {
                    "dataset": source.name,
                    "digest": source.digest,
                    "source": source.source,
                    "domain": part.domain,
                    "altered": part.altered,
                    "index": part.index.tolist(),
                }
                for source, part in zip(sources, division.public, strict=True)
            ],
            "targets": list(division.targets),
            "twins": division.twins,
        }
    return SplitManifest(
        dataset=dataset.name,
        digest=dataset.digest,
        source=dataset.source,
        parameters=parameters,
        seed=seeds.seed,
        seed_path=seeds.path,
        clients={name: tuple(index.tolist()) for name, index in division.clients.items()},
        test=tuple(division.test.tolist()),
        test_from="held_out" if dataset.test is None or division.targets else "official",
        public=public,
    )


def _normalisation(spec: DataSpec, channels: int) -> Normalisation:
    if spec.mean is None or spec.std is None:
        return Normalisation()
    if len(spec.mean) not in (1, channels):
        raise RefusedError(
            f"data.mean has {len(spec.mean)} values: the images have {channels} channel(s); give 1 or {channels}"
        )
    return Normalisation(spec.mean, spec.std)
