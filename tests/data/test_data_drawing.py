"""Choosing examples by label, by share and by number."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedleak.data.drawing import UNWANTED, at_most, most_of_each, renumbered, share_of_each

LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=40).map(torch.tensor)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_labels_are_counted_in_the_order_wanted() -> None:
    labels = torch.tensor([4, 1, 3, 0])
    assert renumbered(labels, (3, 4)).tolist() == [1, UNWANTED, 0, UNWANTED]
    assert renumbered(labels, (9, 1)).tolist() == [UNWANTED, 1, UNWANTED, UNWANTED]
    assert renumbered(labels, None) is labels


@given(labels=LABELS, share=st.floats(0.01, 0.99))
def test_a_share_of_each_class_leaves_one_on_either_side(labels: torch.Tensor, share: float) -> None:
    chosen = share_of_each(labels, share, rng())
    for kind in labels.unique():
        members = int((labels == kind).sum())
        taken = int((chosen & (labels == kind)).sum())
        assert taken == (0 if members == 1 else min(max(int(share * members + 0.5), 1), members - 1))


@given(labels=LABELS, most=st.integers(1, 10))
def test_at_most_so_many_of_each_class(labels: torch.Tensor, most: int) -> None:
    chosen = most_of_each(labels, most, rng())
    for kind in labels.unique():
        assert int((chosen & (labels == kind)).sum()) == min(most, int((labels == kind).sum()))
    assert most_of_each(labels, None, rng()).all()


@given(few=st.integers(1, 30), more=st.integers(0, 30))
def test_fewer_are_always_among_more_and_in_order(few: int, more: int) -> None:
    index = torch.arange(40) * 3
    small, large = at_most(index, few, rng()), at_most(index, few + more, rng())
    assert len(small) == min(few, 40)
    assert bool(torch.isin(small, large).all())
    assert small.tolist() == sorted(small.tolist())
