"""Private people among public ones: D_0, D_a and the private sets of pli.txt, as positions in one data set."""

from __future__ import annotations

import torch
from torch import Tensor

from fedleak.data import partition
from fedleak.data.dataset import Dataset
from fedleak.data.division import Division, PublicPart, wanted_labels
from fedleak.data.drawing import UNWANTED, at_most, most_of_each, share_of_each
from fedleak.data.public import PublicSpec
from fedleak.data.spec import DataSpec
from fedleak.errors import RefusedError
from fedleak.seeding import Seeds

__all__ = ["divide_people"]


def divide_people(spec: DataSpec, dataset: Dataset, streams: Seeds) -> Division:
    """Draw the targets, then share out everybody's images; see `PublicSpec` for who gets what."""
    public = spec.public
    assert public is not None  # the caller has looked
    assert public.targets is not None  # PublicSpec's own rule
    labels = wanted_labels(spec, dataset.train, dataset.classes)
    clean, other = _domains(spec, public, dataset, labels)
    targets = _targets(public, labels, clean, other, streams.generator("targets"))
    of_target = torch.isin(labels, targets)

    held = clean[of_target[clean]]
    rest = clean[~of_target[clean]]
    if public.domain == "own":
        plain, altered = rest, other
    elif public.shares_out:
        aside = share_of_each(labels[held], public.share, streams.generator("public"))
        held, shown = held[~aside], held[aside]
        plain, altered = _of_the_rest(public, labels, rest, shown, streams)
    else:
        plain, altered = rest, clean
    for name, index in (("D_0, clean images of other people", plain), ("D_a, images of the other domain", altered)):
        if len(index) == 0:
            raise RefusedError(
                f"data.public: {name}: there are none in {spec.name}; use another domain or fewer targets"
            )

    test = torch.zeros(len(held), dtype=torch.bool)
    if spec.test_fraction > 0:
        test = share_of_each(labels[held], spec.test_fraction, streams.generator("test"))
    held, tested = held[~test], held[test]
    tested = at_most(tested, spec.test_examples, streams.generator("test_cap"))
    held = held[most_of_each(labels[held], spec.per_class, streams.generator("per_class"))]
    parts = partition.by_class(labels[held], spec.clients, streams.generator("partition"))
    clients = {f"client-{number}": held[part] for number, part in enumerate(parts)}
    twins = int(torch.isin(held, altered).sum())
    shares = (PublicPart(plain, domain=0), PublicPart(altered, domain=1, altered=public.domain != "own"))
    return Division(clients, tested, shares, tuple(targets.tolist()), twins)


def _domains(spec: DataSpec, public: PublicSpec, dataset: Dataset, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The images of the private domain and those of the data set's own other domain."""
    index = torch.nonzero(labels != UNWANTED).flatten()
    domains = dataset.train.domains
    if domains is None:
        if public.domain == "own":
            raise RefusedError(
                f"public.domain='own': the files of {spec.name} have one domain only; use 'mask' or 'blur'"
            )
        return index, index[:0]
    return index[domains[index] == 0], index[domains[index] != 0]


def _targets(public: PublicSpec, labels: Tensor, clean: Tensor, other: Tensor, rng: torch.Generator) -> Tensor:
    """The private labels, drawn among the people who have an image for either side."""
    wanted = public.targets or 0
    people, counts = torch.unique(labels[clean], return_counts=True)
    if wanted >= len(people):
        raise RefusedError(
            f"public.targets={wanted}: there are {len(people)} people; at least one must be left whose images are "
            "public"
        )
    able = counts >= (2 if public.shares_out else 1)
    if public.domain == "own":
        able &= torch.isin(people, labels[other])
    people = people[able]
    if wanted > len(people):
        raise RefusedError(
            f"public.targets={wanted}: {len(people)} people have an image for the private set and another for D_a; "
            "use fewer targets"
        )
    chosen: Tensor = people[torch.randperm(len(people), generator=rng)[:wanted]].sort().values
    return chosen


def _of_the_rest(
    public: PublicSpec, labels: Tensor, rest: Tensor, shown: Tensor, streams: Seeds
) -> tuple[Tensor, Tensor]:
    """(D_0, D_a) where the images of targets are shared out; `shown` are the public ones of the targets."""
    if public.domain != "blur":
        return rest, torch.cat([rest, shown]).sort().values
    if public.variant != "released":
        return rest, shown
    blurred = share_of_each(labels[rest], public.share, streams.generator("public_rest"))
    return rest[~blurred], torch.cat([rest[blurred], shown]).sort().values
