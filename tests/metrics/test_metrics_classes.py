"""Attack accuracy: the picture found for a class against the mean image of every private class."""

from __future__ import annotations

import pytest
import torch

from fedleak.errors import ShapeError
from fedleak.metrics import class_hits, class_means, judge
from fedleak.types import Examples, RecoveredImages, Truth


def private() -> Examples:
    """Three classes of two images each, labels 4, 7 and 9; client a holds the first two."""
    draw = torch.Generator().manual_seed(0)
    inputs = torch.rand(3, 1, 1, 12, 12, generator=draw) + 0.05 * torch.rand(3, 2, 1, 12, 12, generator=draw)
    return Examples(inputs.flatten(0, 1), torch.tensor([7, 7, 4, 4, 9, 9]))


def test_class_means_by_hand() -> None:
    inputs = torch.tensor([0.0, 1.0, 0.5, 0.5]).reshape(4, 1, 1, 1)
    labels, means = class_means(Examples(inputs, torch.tensor([3, 3, 1, 1])))
    assert labels.tolist() == [1, 3]
    assert means.flatten().tolist() == [0.5, 0.5]


def test_the_means_themselves_hit_and_exchanged_they_miss() -> None:
    labels, means = class_means(private())
    wanted = torch.tensor([4, 7])
    assert class_hits(means, labels, wanted, labels, means).tolist() == [1.0, 1.0]
    assert class_hits(means, labels.flip(0), wanted, labels, means).tolist() == [0.0, 1.0]  # 7 is in the middle


def test_a_class_that_is_not_named_or_not_finite_is_a_miss() -> None:
    labels, means = class_means(private())
    broken = means.clone()
    broken[1] = torch.nan
    assert class_hits(means[:1], labels[:1], torch.tensor([4, 7]), labels, means).tolist() == [1.0, 0.0]
    assert class_hits(broken, labels, torch.tensor([4, 7]), labels, means).tolist() == [1.0, 0.0]
    assert class_hits(means[:0], labels[:0], torch.tensor([4]), labels, means).tolist() == [0.0]


def test_of_a_class_named_twice_the_first_picture_counts() -> None:
    labels, means = class_means(private())
    twice = means[[2, 0]]
    assert class_hits(twice, torch.tensor([4, 4]), torch.tensor([4]), labels, means).tolist() == [0.0]


def test_a_picture_without_a_label_is_refused() -> None:
    labels, means = class_means(private())
    with pytest.raises(ShapeError, match="every picture needs the label"):
        class_hits(means, labels[:1], labels, labels, means)


def test_judge_scores_one_number_per_class_behind_the_message() -> None:
    held = private()
    truth = Truth(held, ("a",) * 4 + ("b",) * 2, {(2, "a"): torch.arange(4)}, Examples(held.inputs, held.labels))
    labels, means = class_means(held)
    found = RecoveredImages("a", 2, means[:2], labels[:2], 0.0)
    verdict = judge(found, truth, ["attack_accuracy", "label_errors"], 30.0, None, torch.Generator().manual_seed(0))
    assert verdict.scores["attack_accuracy"] == [1.0, 1.0]
    assert len(verdict.scores["label_errors"]) == 4
