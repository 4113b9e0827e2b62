"""Who holds what: pure functions from labels or writers to one index tensor per client.

Every function draws from the generator it is given and returns disjoint, non-empty parts, each in random order, so
that the first k of a part are a random sample of it. Where that is impossible it refuses and says why.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedleak.errors import RefusedError

__all__ = ["by_class", "by_writer", "dirichlet", "iid"]

Parts = list[Tensor]


def iid(count: int, clients: int, rng: torch.Generator) -> Parts:
    """All `count` examples shuffled and cut into near equal parts."""
    _enough(count, clients)
    return list(torch.randperm(count, generator=rng).tensor_split(clients))


def by_class(labels: Tensor, clients: int, rng: torch.Generator, classes_per_client: int | None = None) -> Parts:
    """Every client holds few classes.

    By default the classes are cut into near equal disjoint sets, one per client; with more clients than classes every
    client holds one class and shares it. With `classes_per_client` every client holds exactly that many, and classes
    are dealt out evenly. A class held by several clients is cut into near equal parts; a class held by none (when
    clients * classes_per_client is less than the number of classes) is left out.
    """
    _enough(len(labels), clients)
    kinds = torch.unique(labels)
    kinds = kinds[torch.randperm(len(kinds), generator=rng)]
    holdings = _holdings(len(kinds), clients, classes_per_client)
    pieces: list[Parts] = [[] for _ in range(clients)]
    for position, kind in enumerate(kinds):
        holders = [client for client, held in enumerate(holdings) if position in held]
        if not holders:
            continue
        members = _shuffled(torch.nonzero(labels == kind).flatten(), rng)
        for client, piece in zip(holders, members.tensor_split(len(holders)), strict=True):
            pieces[client].append(piece)
    parts = [_shuffled(torch.cat(own), rng) for own in pieces]
    poor = [client for client, part in enumerate(parts) if len(part) == 0]
    if poor:
        raise RefusedError(
            f"partition='by_class' with clients={clients}: client-{poor[0]} would hold nothing, because its classes "
            "have fewer examples than clients that share them; use fewer clients"
        )
    return parts


def _holdings(kinds: int, clients: int, classes_per_client: int | None) -> list[set[int]]:
    """For every client, which positions of the shuffled class list it holds."""
    if classes_per_client is None and clients <= kinds:
        return [set(own.tolist()) for own in torch.arange(kinds).tensor_split(clients)]
    each = classes_per_client or 1
    if each > kinds:
        raise RefusedError(
            f"classes_per_client={each}: the training examples have {kinds} classes; ask for at most that"
        )
    # Dealt in turn from the cyclic list: `each` consecutive positions are distinct, and no class is dealt a second time
    # before every class was dealt once.
    return [{(client * each + turn) % kinds for turn in range(each)} for client in range(clients)]


def dirichlet(labels: Tensor, clients: int, rng: torch.Generator, alpha: float) -> Parts:
    """Each class is spread over the clients by proportions drawn from Dirichlet(alpha, ..., alpha).

    Small alpha: a class sits with few clients. Large alpha: near iid. All examples are dealt out. A draw may leave a
    client with nothing; it is then given one example of the client that holds most (drawing again until nobody is
    empty, as is often done, need not end for a small alpha and bends the distribution).
    """
    _enough(len(labels), clients)
    pieces: list[Parts] = [[] for _ in range(clients)]
    for kind in torch.unique(labels):
        members = _shuffled(torch.nonzero(labels == kind).flatten(), rng)
        ends = (_proportions(clients, alpha, rng).cumsum(0) * len(members)).round().long()[:-1]
        for own, piece in zip(pieces, members.tensor_split(ends), strict=True):
            own.append(piece)
    parts = [_shuffled(torch.cat(own), rng) for own in pieces]
    while any(len(part) == 0 for part in parts):
        poor = next(client for client, part in enumerate(parts) if len(part) == 0)
        rich = max(range(clients), key=lambda client: len(parts[client]))
        parts[poor], parts[rich] = parts[rich][-1:], parts[rich][:-1]
    return parts


def _proportions(clients: int, alpha: float, rng: torch.Generator) -> Tensor:
    """One draw of Dirichlet(alpha, ..., alpha), in logarithms: Gamma(alpha) = Gamma(alpha + 1) * U^(1/alpha).

    For alpha below 0.01 gamma variates underflow to 0 all at once and their ratio is lost.
    """
    # torch has no public gamma variate that takes a generator: numpy draws it, seeded by ours.
    draws = np.random.default_rng(int(torch.randint(0, 2**62, (1,), generator=rng)))
    gamma = draws.standard_gamma(alpha + 1.0, size=clients)
    logs = np.log(gamma) + np.log1p(-draws.random(clients)) / alpha
    return torch.softmax(torch.from_numpy(logs), dim=0)


def by_writer(
    writers: Tensor, clients: int, rng: torch.Generator, writers_per_client: int = 1, enough: int = 1
) -> Parts:
    """Every client is one writer, or `writers_per_client` of them, drawn at random.

    Writers with fewer than `enough` examples come last: they are used only where the others do not suffice. Writers
    that are not drawn are left out.
    """
    people, counts = torch.unique(writers, return_counts=True)
    wanted = clients * writers_per_client
    if wanted > len(people):
        raise RefusedError(
            f"partition='by_writer' with clients={clients}, writers_per_client={writers_per_client}: needs {wanted} "
            f"writers, the training examples have {len(people)}; use fewer clients"
        )
    order = torch.randperm(len(people), generator=rng)
    order = order[torch.argsort((counts[order] < enough).long(), stable=True)]
    # Dealt in turn, so that where the small writers are needed no client gets all of them.
    groups = people[order[:wanted]].reshape(writers_per_client, clients).T
    return [_shuffled(torch.nonzero(torch.isin(writers, group)).flatten(), rng) for group in groups]


def _shuffled(index: Tensor, rng: torch.Generator) -> Tensor:
    return index[torch.randperm(len(index), generator=rng)]


def _enough(count: int, clients: int) -> None:
    if clients > count:
        raise RefusedError(f"clients={clients}: there are {count} training examples; use at most that many clients")
