"""From a `[data]` table to what every client holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedleak.components import resolved
from fedleak.data import partition
from fedleak.data.dataset import Dataset, Images
from fedleak.data.files import Request
from fedleak.data.manifest import SplitManifest
from fedleak.data.pixels import as_pixels
from fedleak.data.registry import read_dataset
from fedleak.data.spec import DataSpec
from fedleak.errors import RefusedError
from fedleak.seeding import Seeds
from fedleak.types import Examples, Normalisation

__all__ = ["FederatedData", "load", "read", "split"]


@dataclass(frozen=True, eq=False)
class FederatedData:
    """What every client holds ("client-0", "client-1", ...) and the common test set, as pixels in [0, 1]."""

    name: str
    clients: dict[str, Examples]
    test: Examples
    classes: int
    input_shape: tuple[int, int, int]
    normalisation: Normalisation
    manifest: SplitManifest


def load(spec: DataSpec, root: Path, seeds: Seeds) -> FederatedData:
    """Read the data set and split it. With many seeds over one data set, `read` once and `split` for each."""
    return split(spec, read(spec, root), seeds)


def read(spec: DataSpec, root: Path) -> Dataset:
    """The whole data set that a specification names."""
    return read_dataset(spec.name, Request(root, path=spec.path, subset=spec.subset, size=spec.size))


def split(spec: DataSpec, dataset: Dataset, seeds: Seeds) -> FederatedData:
    """Deal a data set out to the clients. Only the examples that somebody takes become floating point."""
    streams = seeds.under("data")
    pool = _of_classes(dataset.train.labels, spec, dataset)
    if dataset.test is None:
        held_out = _stratified(dataset.train.labels[pool], spec.test_fraction, streams.generator("test"))
        pool, test, tested = pool[~held_out], pool[held_out], dataset.train
    else:
        test, tested = _of_classes(dataset.test.labels, spec, dataset), dataset.test
    if len(test) == 0:
        raise RefusedError(
            f"data.name={spec.name!r}: no test examples are left; use a larger test_fraction or more data"
        )
    test = _capped(test, spec.test_examples, streams.generator("test_cap"))
    parts = _dealt(spec, dataset.train, pool, streams.generator("partition"))
    owned = {f"client-{number}": pool[part][: spec.per_client] for number, part in enumerate(parts)}

    clients = {name: _examples(spec, dataset.train, index) for name, index in owned.items()}
    examples = _examples(spec, tested, test)
    channels, height, width = examples.inputs.shape[1:]
    classes = dataset.classes if spec.classes is None else len(spec.classes)
    manifest = SplitManifest(
        dataset=dataset.name,
        digest=dataset.digest,
        source=dataset.source,
        # Where the file lay does not matter: the digest says what was in it.
        parameters={key: value for key, value in resolved(spec).items() if key not in ("name", "path")},
        seed=seeds.seed,
        seed_path=seeds.path,
        clients={name: tuple(index.tolist()) for name, index in owned.items()},
        test=tuple(test.tolist()),
        test_from="held_out" if dataset.test is None else "official",
    )
    normalisation = _normalisation(spec, channels)
    return FederatedData(dataset.name, clients, examples, classes, (channels, height, width), normalisation, manifest)


def _dealt(spec: DataSpec, train: Images, pool: Tensor, rng: torch.Generator) -> list[Tensor]:
    """Positions in `pool` for every client."""
    match spec.partition:
        case "iid":
            return partition.iid(len(pool), spec.clients, rng)
        case "by_class":
            return partition.by_class(train.labels[pool], spec.clients, rng, spec.classes_per_client)
        case "dirichlet":
            assert spec.alpha is not None  # DataSpec's own rule
            return partition.dirichlet(train.labels[pool], spec.clients, rng, spec.alpha)
        case "by_writer":
            if train.writers is None:
                raise RefusedError(
                    f"partition='by_writer': the files of {spec.name} do not say who wrote what; they need an array "
                    "writer_train (mnist.npz has one, the idx files have none), or use another partition"
                )
            each = spec.writers_per_client or 1
            # A writer has enough when `each` like them fill a client up to its cap.
            enough = -(-(spec.per_client or 1) // each)
            return partition.by_writer(train.writers[pool], spec.clients, rng, each, enough)


def _of_classes(labels: Tensor, spec: DataSpec, dataset: Dataset) -> Tensor:
    """The positions of the examples whose label the specification wants."""
    if spec.classes is None:
        return torch.arange(len(labels))
    beyond = [label for label in spec.classes if label >= dataset.classes]
    if beyond:
        raise RefusedError(
            f"data.classes has label {beyond[0]}: the labels of {spec.name} go from 0 to {dataset.classes - 1}"
        )
    return torch.nonzero(torch.isin(labels, torch.tensor(spec.classes))).flatten()


def _stratified(labels: Tensor, fraction: float, rng: torch.Generator) -> Tensor:
    """True for a random `fraction` of every class; a class of two or more keeps one example on either side."""
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    for kind in torch.unique(labels):
        members = torch.nonzero(labels == kind).flatten()
        count = min(max(int(fraction * len(members) + 0.5), 1), len(members) - 1)
        chosen[members[torch.randperm(len(members), generator=rng)[:count]]] = True
    return chosen


def _capped(index: Tensor, most: int | None, rng: torch.Generator) -> Tensor:
    if most is None or len(index) <= most:
        return index
    return index[torch.randperm(len(index), generator=rng)[:most].sort().values]


def _examples(spec: DataSpec, images: Images, index: Tensor) -> Examples:
    labels = images.labels[index]
    if spec.classes is not None:
        renumbered = torch.zeros(max(spec.classes) + 1, dtype=torch.int64)
        renumbered[list(spec.classes)] = torch.arange(len(spec.classes))
        labels = renumbered[labels]
    return Examples(as_pixels(images.inputs[index], size=spec.size, grey=spec.grey), labels)


def _normalisation(spec: DataSpec, channels: int) -> Normalisation:
    if spec.mean is None or spec.std is None:
        return Normalisation()
    if len(spec.mean) not in (1, channels):
        raise RefusedError(
            f"data.mean has {len(spec.mean)} values: the images have {channels} channel(s); give 1 or {channels}"
        )
    return Normalisation(spec.mean, spec.std)
