"""Index batches: uneven ends, one pass each, a new order every epoch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedleak.errors import RefusedError
from fedleak.learning.batches import epoch_batches, schedule


def test_last_batch_holds_what_is_left_over() -> None:
    assert [b.tolist() for b in epoch_batches(7, 3)] == [[0, 1, 2], [3, 4, 5], [6]]


def test_no_batch_size_means_all_at_once() -> None:
    assert [b.tolist() for b in epoch_batches(4)] == [[0, 1, 2, 3]]


def test_a_batch_larger_than_the_data_is_one_batch() -> None:
    assert [len(b) for b in epoch_batches(3, 10)] == [3]


@given(count=st.integers(1, 60), size=st.integers(1, 20), epochs=st.integers(1, 4), seed=st.integers(0, 99))
def test_every_epoch_holds_every_example_exactly_once(count: int, size: int, epochs: int, seed: int) -> None:
    plan = schedule(count, size, epochs, torch.Generator().manual_seed(seed))
    assert len(plan) == epochs
    for epoch in plan:
        assert sorted(torch.cat(epoch).tolist()) == list(range(count))
        assert [len(b) for b in epoch] == [size] * (count // size) + ([count % size] if count % size else [])


def test_every_epoch_has_its_own_order_the_first_included() -> None:
    orders = [torch.cat(epoch).tolist() for epoch in schedule(20, 6, 3, torch.Generator().manual_seed(0))]
    assert len({tuple(order) for order in [*orders, list(range(20))]}) == 4


def test_without_a_generator_the_order_is_the_examples() -> None:
    assert [torch.cat(e).tolist() for e in schedule(5, 2, 2)] == [[0, 1, 2, 3, 4]] * 2


@pytest.mark.parametrize(
    ("count", "size", "epochs", "name"), [(0, 1, 1, "examples=0"), (3, 0, 1, "batch_size=0"), (3, 1, 0, "epochs=0")]
)
def test_senseless_numbers_are_refused_by_name(count: int, size: int, epochs: int, name: str) -> None:
    with pytest.raises(RefusedError, match=name):
        schedule(count, size, epochs)
