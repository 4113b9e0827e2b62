"""Who gets which images of a data set, as positions only: clients, the test set, and the parts of the public set."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedleak.data import partition
from fedleak.data.dataset import Dataset, Images
from fedleak.data.drawing import UNWANTED, at_most, most_of_each, renumbered, share_of_each
from fedleak.data.public import PublicSpec
from fedleak.data.registry import DATASETS
from fedleak.data.spec import DataSpec
from fedleak.errors import RefusedError
from fedleak.seeding import Seeds

__all__ = ["Division", "PublicPart", "divide", "wanted_labels"]


@dataclass(frozen=True, eq=False)
class PublicPart:
    """Some of the public images: positions in the training part of a data set, all of one domain.

    `altered`: seen through the mask or the blur of the specification. `private`: they are of the private data set.
    """

    index: Tensor
    domain: int
    altered: bool = False
    private: bool = True


@dataclass(frozen=True, eq=False)
class Division:
    """Positions in the training part of the private data set, but `test` in its official test part where it has one.

    `targets` are the private labels where the public set has others beside them; `twins` is how many of the clients'
    images are public too, altered.
    """

    clients: dict[str, Tensor]
    test: Tensor
    public: tuple[PublicPart, ...] = ()
    targets: tuple[int, ...] = ()
    twins: int = 0


def divide(spec: DataSpec, dataset: Dataset, streams: Seeds, other: Dataset | None = None) -> Division:
    """Deal out the images; `other` is the data set that `public.name` names. Private people are `divide_people`'s."""
    labels = wanted_labels(spec, dataset.train, dataset.classes)
    pool, public_writers = torch.nonzero(labels != UNWANTED).flatten(), torch.zeros(0, dtype=torch.int64)
    if spec.public is not None and spec.public.by_writers:
        public_writers = _some_writers(spec.public, dataset.train, streams)
        pool = pool[~torch.isin(_writers(spec, dataset.train)[pool], public_writers)]
    if dataset.test is None:
        held_out = share_of_each(labels[pool], spec.test_fraction, streams.generator("test"))
        pool, test = pool[~held_out], pool[held_out]
    else:
        test = torch.nonzero(wanted_labels(spec, dataset.test, dataset.classes) != UNWANTED).flatten()
    if len(test) == 0:
        raise RefusedError(
            f"data.name={spec.name!r}: no test examples are left; use a larger test_fraction or more data"
        )
    test = at_most(test, spec.test_examples, streams.generator("test_cap"))
    kept = most_of_each(labels[pool], spec.per_class, streams.generator("per_class"))
    pool, spare = pool[kept], pool[~kept]
    public: tuple[PublicPart, ...] = ()
    if spec.public is not None and spec.public.by_writers:
        public = (_of_writers(spec.public, dataset.train, public_writers, streams),)
    elif spec.public is not None:
        assert other is not None  # the caller reads what `public.name` names
        public, pool = _mixed(spec.public, other, pool, None if spec.per_class is None else spare, streams)
    parts = dealt(spec, dataset.train, labels, pool, streams.generator("partition"))
    clients = {f"client-{number}": pool[part][: spec.per_client] for number, part in enumerate(parts)}
    return Division(clients, test, public)


def dealt(spec: DataSpec, train: Images, labels: Tensor, pool: Tensor, rng: torch.Generator) -> list[Tensor]:
    """Positions in `pool` for every client."""
    match spec.partition:
        case "iid":
            return partition.iid(len(pool), spec.clients, rng)
        case "by_class":
            return partition.by_class(labels[pool], spec.clients, rng, spec.classes_per_client)
        case "dirichlet":
            assert spec.alpha is not None  # DataSpec's own rule
            return partition.dirichlet(labels[pool], spec.clients, rng, spec.alpha)
        case "by_writer":
            each = spec.writers_per_client or 1
            in_order = DATASETS[spec.name].in_order
            # A writer has enough when `each` like them fill a client up to its cap. Of a data set with an order of its
            # own every writer will do: one with fewer examples keeps fewer (facts of fedavg_leakage).
            enough = 1 if in_order else -(-(spec.per_client or 1) // each)
            parts = partition.by_writer(_writers(spec, train)[pool], spec.clients, rng, each, enough)
            return [part.sort().values for part in parts] if in_order else parts


def wanted_labels(spec: DataSpec, images: Images, classes: int) -> Tensor:
    """The labels of all images as the specification numbers them."""
    beyond = [label for label in spec.classes or () if label >= classes]
    if beyond:
        raise RefusedError(f"data.classes has label {beyond[0]}: the labels of {spec.name} go from 0 to {classes - 1}")
    return renumbered(images.labels, spec.classes)


def _writers(spec: DataSpec, train: Images) -> Tensor:
    if train.writers is None:
        raise RefusedError(
            f"partition='by_writer': the files of {spec.name} do not say who wrote what; they need an array "
            "writer_train (mnist.npz has one, the idx files have none), or use another partition"
        )
    return train.writers


def _some_writers(public: PublicSpec, train: Images, streams: Seeds) -> Tensor:
    """The writers whose images are public."""
    if train.writers is None:
        raise RefusedError("public.by_writers: the files do not say who wrote what; use another public set")
    people = torch.unique(train.writers)
    count = min(max(int(public.share * len(people) + 0.5), 1), len(people) - 1)
    order = torch.randperm(len(people), generator=streams.generator("public_writers"))
    chosen: Tensor = people[order[:count]]
    return chosen


def _of_writers(public: PublicSpec, train: Images, writers: Tensor, streams: Seeds) -> PublicPart:
    assert train.writers is not None  # _some_writers has looked
    index = torch.nonzero(torch.isin(train.writers, writers)).flatten()
    if public.classes is not None:
        index = index[torch.isin(train.labels[index], torch.tensor(public.classes))]
    return PublicPart(at_most(index, public.examples, streams.generator("public")), domain=1)


def _mixed(
    public: PublicSpec, other: Dataset, pool: Tensor, spare: Tensor | None, streams: Seeds
) -> tuple[tuple[PublicPart, ...], Tensor]:
    """The public set of two sources, and what is left of the private pool.

    The images of the private distribution are `spare`, what `per_class` left over; without that cap every image would
    go to a client, and they are taken from the pool. A larger alpha adds private images to those of a smaller one.
    """
    foreign = torch.nonzero(renumbered(other.train.labels, public.classes) != UNWANTED).flatten()
    total = public.examples or len(foreign)
    near = int((public.alpha or 0.0) * total + 0.5)
    far = total - near if near else min(total, len(foreign))
    source = pool[1:] if spare is None else spare  # one is left for the clients
    for count, there, name in ((near, len(source), "the private data set"), (far, len(foreign), other.name)):
        if count > there:
            raise RefusedError(
                f"public.alpha={public.alpha or 0.0} of {total} public images: {count} must come from {name}, which "
                f"has {there} that neither clients nor the test set hold; use a smaller public.examples"
            )
    taken = at_most(source, near, streams.generator("public_private"))
    parts = (
        PublicPart(taken, domain=0),
        PublicPart(at_most(foreign, far, streams.generator("public")), domain=1, private=False),
    )
    left = pool[~torch.isin(pool, taken)] if spare is None else pool
    return tuple(part for part in parts if len(part.index)), left
