"""Partitions as properties: disjoint, complete where they should be, never empty, the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import scipy.stats
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedleak.data.partition import _proportions, by_class, by_writer, dirichlet, iid
from fedleak.errors import RefusedError

Split = Callable[[torch.Generator], list[Tensor]]


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def check(split: Split, seed: int, clients: int) -> list[Tensor]:
    """What holds for every partition; gives the parts back."""
    parts, again = split(rng(seed)), split(rng(seed))
    assert len(parts) == clients
    assert all(len(part) > 0 for part in parts)
    together = torch.cat(parts)
    assert len(together.unique()) == len(together), "no example belongs to two clients"
    assert all(torch.equal(one, two) for one, two in zip(parts, again, strict=True))
    return parts


labels_of = st.lists(st.integers(0, 5), min_size=1, max_size=80).map(torch.tensor)
seeds = st.integers(0, 2**31)


@settings(max_examples=50, deadline=None)
@given(count=st.integers(1, 200), clients=st.integers(1, 20), seed=seeds)
def test_iid_is_complete_and_even(count: int, clients: int, seed: int) -> None:
    assume(clients <= count)
    parts = check(lambda g: iid(count, clients, g), seed, clients)
    assert torch.cat(parts).sort().values.tolist() == list(range(count))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=50, deadline=None)
@given(labels=labels_of, clients=st.integers(1, 6), seed=seeds)
def test_by_class_cuts_the_classes_into_disjoint_sets(labels: Tensor, clients: int, seed: int) -> None:
    assume(clients <= len(labels.unique()))
    parts = check(lambda g: by_class(labels, clients, g), seed, clients)
    assert len(torch.cat(parts)) == len(labels)
    held = [set(labels[part].tolist()) for part in parts]
    assert sum(map(len, held)) == len(set.union(*held)), "no class belongs to two clients"
    assert max(map(len, held)) - min(map(len, held)) <= 1


@settings(max_examples=50, deadline=None)
@given(kinds=st.integers(1, 6), each=st.integers(1, 6), clients=st.integers(1, 12), seed=seeds)
def test_by_class_with_a_number_of_classes(kinds: int, each: int, clients: int, seed: int) -> None:
    assume(each <= kinds)
    labels = torch.arange(kinds).repeat(20)
    parts = check(lambda g: by_class(labels, clients, g, each), seed, clients)
    held = [set(labels[part].tolist()) for part in parts]
    assert all(len(own) == each for own in held)
    holders = [sum(kind in own for own in held) for kind in range(kinds)]
    assert max(holders) - min(holders) <= 1, "classes are dealt out evenly"
    complete = len(torch.cat(parts)) == len(labels)
    assert complete == (each * clients >= kinds)


def test_by_class_with_more_clients_than_classes_shares_them() -> None:
    labels = torch.tensor([0] * 9 + [1] * 6)
    parts = check(lambda g: by_class(labels, 5, g), 0, 5)
    assert all(len(labels[part].unique()) == 1 for part in parts)
    assert len(torch.cat(parts)) == 15


def test_by_class_draws_which_classes_go_together() -> None:
    labels = torch.arange(10).repeat(2)
    first = {frozenset(labels[by_class(labels, 2, rng(seed))[0]].tolist()) for seed in range(10)}
    assert len(first) > 1


@settings(max_examples=80, deadline=None)
@given(labels=labels_of, clients=st.integers(1, 12), alpha=st.sampled_from([1e-4, 0.1, 1.0, 50.0, 1e6]), seed=seeds)
def test_dirichlet_is_complete_and_leaves_nobody_empty(labels: Tensor, clients: int, alpha: float, seed: int) -> None:
    assume(clients <= len(labels))
    parts = check(lambda g: dirichlet(labels, clients, g, alpha), seed, clients)
    assert torch.cat(parts).sort().values.tolist() == list(range(len(labels)))


def test_dirichlet_limits() -> None:
    labels = torch.arange(4).repeat_interleave(100)
    even = dirichlet(labels, 4, rng(0), 1e8)
    assert all(torch.bincount(labels[part], minlength=4).tolist() == [25, 25, 25, 25] for part in even)
    # a tiny alpha gives each class to one client, but for what the empty ones are handed
    lumpy = dirichlet(labels, 4, rng(0), 1e-4)
    shares = torch.stack([torch.bincount(labels[part], minlength=4) for part in lumpy])
    assert int(shares.max(dim=0).values.min()) >= 97


@pytest.mark.parametrize("alpha", [0.05, 0.5, 1.0, 5.0])
def test_the_shares_follow_the_dirichlet_law(alpha: float) -> None:
    """One coordinate of Dirichlet(a, ..., a) over K is Beta(a, (K - 1) a): checked by scipy's Kolmogorov-Smirnov."""
    clients, draws, generator = 5, 2000, rng(1)
    shares = torch.stack([_proportions(clients, alpha, generator) for _ in range(draws)])
    assert torch.allclose(shares.sum(dim=1), torch.ones(draws, dtype=shares.dtype))
    verdict = scipy.stats.kstest(shares[:, 2].numpy(), scipy.stats.beta(alpha, (clients - 1) * alpha).cdf)
    assert verdict.pvalue > 0.01


@settings(max_examples=50, deadline=None)
@given(
    writers=st.lists(st.integers(-3, 12), min_size=1, max_size=80).map(torch.tensor),
    clients=st.integers(1, 6),
    each=st.integers(1, 3),
    seed=seeds,
)
def test_by_writer_never_splits_a_writer(writers: Tensor, clients: int, each: int, seed: int) -> None:
    assume(clients * each <= len(writers.unique()))
    parts = check(lambda g: by_writer(writers, clients, g, each), seed, clients)
    for part in parts:
        people = writers[part].unique()
        assert len(people) == each
        assert len(part) == int(torch.isin(writers, people).sum()), "all of a writer's examples come along"
    if clients * each == len(writers.unique()):
        assert len(torch.cat(parts)) == len(writers)


def test_by_writer_takes_writers_with_too_few_last() -> None:
    writers = torch.tensor([1] * 9 + [2] + [3] * 8 + [4] * 2 + [5] * 7)
    for seed in range(20):
        parts = by_writer(writers, 3, rng(seed), enough=5)
        assert {int(writers[part][0]) for part in parts} == {1, 3, 5}
        sizes = [len(part) for part in by_writer(writers, 4, rng(seed), enough=5)]
        assert min(sizes) < 5


def test_parts_come_in_random_order_so_that_a_cap_is_a_sample() -> None:
    labels = torch.arange(2).repeat_interleave(500)
    for parts in (
        iid(1000, 1, rng(0)),
        by_class(labels, 1, rng(0)),
        dirichlet(labels, 1, rng(0), 1.0),
        by_writer(torch.zeros(1000, dtype=torch.int64), 1, rng(0)),
    ):
        first = labels[parts[0][:200]].float().mean()
        assert 0.35 < float(first) < 0.65


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (lambda g: iid(3, 4, g), "clients=4: there are 3 training examples"),
        (lambda g: by_class(torch.tensor([0, 1]), 3, g), "clients=3: there are 2 training examples"),
        (lambda g: by_class(torch.tensor([0, 1, 1, 1, 1]), 4, g), "would hold nothing"),
        (lambda g: by_class(torch.tensor([0, 1, 1]), 2, g, 3), "classes_per_client=3: .* have 2 classes"),
        (lambda g: dirichlet(torch.tensor([0, 1]), 3, g, 1.0), "clients=3"),
        (lambda g: by_writer(torch.tensor([5, 6, 6]), 3, g), "needs 3 writers, the training examples have 2"),
        (lambda g: by_writer(torch.tensor([5, 6, 6]), 1, g, 4), "needs 4 writers"),
    ],
)
def test_the_impossible_is_refused_with_the_reason(split: Split, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        split(rng(0))
