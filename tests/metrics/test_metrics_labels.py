"""Label errors as multisets, in total and per example."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedleak.errors import DataError, ShapeError
from fedleak.metrics import label_errors, wrong_labels

some_labels = st.lists(st.integers(0, 4), max_size=8)


def labels(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.long)


def test_by_hand() -> None:
    assert label_errors(labels(1, 2, 3), labels(3, 1, 2)) == 0
    assert label_errors(labels(1, 1, 1), labels(1, 2, 3)) == 2
    assert label_errors(labels(7), labels(8)) == 1


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data(), true=st.lists(st.integers(0, 4), min_size=1, max_size=8))
def test_half_the_sum_of_count_differences_when_totals_agree(data: st.DataObject, true: list[int]) -> None:
    found = data.draw(st.lists(st.integers(0, 4), min_size=len(true), max_size=len(true)))
    difference = torch.bincount(labels(*found), minlength=5) - torch.bincount(labels(*true), minlength=5)
    errors = label_errors(labels(*found), labels(*true))
    assert errors == difference.abs().sum().item() / 2
    assert wrong_labels(labels(*found), labels(*true)).sum().item() == errors


def test_missing_and_superfluous_labels_are_one_error_each() -> None:
    assert label_errors(labels(1), labels(1, 2, 2)) == 2
    assert label_errors(labels(1, 2, 2), labels(1)) == 2
    assert label_errors(labels(), labels(4, 4)) == 2
    assert label_errors(labels(1, 9), labels(1, 2, 2)) == 2


@settings(max_examples=100, deadline=None, derandomize=True)
@given(some_labels, some_labels, st.randoms(use_true_random=False))
def test_per_example_the_sum_is_what_is_missing_whatever_the_matching(found, true, random) -> None:
    partner = [random.choice([-1, *range(len(found))]) for _ in true]
    wrong = wrong_labels(labels(*found), labels(*true), torch.tensor(partner, dtype=torch.long))
    missing = sum(max(0, true.count(k) - found.count(k)) for k in range(5))
    assert wrong.sum().item() == missing
    assert missing == label_errors(labels(*found), labels(*true)) or len(found) > len(true)
    assert set(wrong.tolist()) <= {0.0, 1.0}


def test_the_example_whose_reconstruction_carries_the_label_is_right_first() -> None:
    found, true = labels(5, 8), labels(5, 5)
    assert wrong_labels(found, true).tolist() == [0.0, 1.0]
    assert wrong_labels(found, true, labels(1, 0)).tolist() == [1.0, 0.0]


def test_soft_labels_and_wrong_shapes_are_errors() -> None:
    with pytest.raises(DataError, match="argmax"):
        label_errors(torch.tensor([0.3]), labels(1))
    with pytest.raises(ShapeError, match="one class index"):
        label_errors(torch.zeros(2, 3, dtype=torch.long), labels(1, 2))
    with pytest.raises(ShapeError, match="partner"):
        wrong_labels(labels(1), labels(1, 2), labels(0))
