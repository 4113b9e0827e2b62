"""Theorems 1 and 2 of adamsa.txt: one exactly, the other with what is known of it."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedleak.errors import RefusedError, ShapeError
from fedleak.learning.functional import Network, accuracy
from fedleak.metrics.divergence import Bound, federation_bound, joint_risk, known_bound, mixture, proxy_distance
from fedleak.models import build_model
from fedleak.types import Examples, ModelSpec, PublicSet, Truth

JUDGE = ModelSpec("mlp", {"hidden": 16})


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int, brightness: float, seed: int) -> torch.Tensor:
    return (0.3 * torch.rand(count, 1, 8, 8, generator=rng(seed)) + brightness).clamp(0, 1)


# --- theorem 1 ----------------------------------------------------------------------------------------------------


@given(marks=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_theorem_1_holds_exactly_for_any_model_and_any_mixture(marks: list[tuple[bool, bool]]) -> None:
    wrong, private = (torch.tensor(column) for column in zip(*marks, strict=True))
    found = mixture(wrong, private)
    assert found.mixed == found.predicted
    assert found.alpha == Fraction(sum(p for _, p in marks), len(marks))


def test_theorem_1_of_a_real_network_on_a_real_mixture() -> None:
    inputs = torch.cat([images(30, 0.0, 1), images(50, 0.6, 2)])
    labels = torch.arange(80) % 3
    network = Network(build_model(JUDGE, (1, 8, 8), 3, rng(4)))
    wrong = 1 - accuracy(network, network.initial(), inputs, labels)
    found = mixture(wrong, torch.arange(80) < 30)
    assert found.alpha == Fraction(3, 8)
    assert found.mixed == found.predicted == Fraction(int(wrong.sum()), 80)


def test_theorem_1_by_hand() -> None:
    # 1 of 2 private and 1 of 3 public examples wrong: 2/5 = 2/5 * 1/2 + 3/5 * 1/3
    found = mixture(torch.tensor([1, 0, 0, 1, 0]), torch.tensor([1, 1, 0, 0, 0]))
    assert (found.private, found.public, found.mixed) == (Fraction(1, 2), Fraction(1, 3), Fraction(2, 5))


def test_a_mixture_of_nothing_or_of_other_shapes_is_refused() -> None:
    with pytest.raises(RefusedError):
        mixture(torch.zeros(0), torch.zeros(0))
    with pytest.raises(ShapeError):
        mixture(torch.zeros(3), torch.zeros(4))


# --- theorem 2 ----------------------------------------------------------------------------------------------------


def test_the_bound_by_hand_and_its_end_at_alpha_one() -> None:
    # (1 - 0.25) (1.2 / 2 + 0.1)
    assert Bound(0.25, 1.2, 0.1).value == pytest.approx(0.525)
    assert Bound(1.0, 2.0, 0.7).value == 0.0
    assert Bound(0.25, 1.2).value is None
    assert Bound(0.25, 1.2).known_part == pytest.approx(0.45)
    assert "lambda unknown" in Bound(0.25, 1.2).describe(0.3)
    assert "0.525" in Bound(0.25, 1.2, 0.1).describe(0.3)


@given(alpha=st.floats(0, 1), more=st.floats(0, 1), d=st.floats(0, 2), joint=st.floats(0, 2))
def test_more_private_images_never_loosen_the_bound(alpha: float, more: float, d: float, joint: float) -> None:
    less, after = Bound(alpha, d, joint).value, Bound(min(1.0, alpha + more), d, joint).value
    assert less is not None
    assert after is not None
    assert after <= less


def test_domains_that_differ_are_two_apart_and_the_same_domain_is_near_zero() -> None:
    dark, bright = images(200, 0.0, 1), images(200, 0.6, 2)
    assert proxy_distance(dark, bright, rng(), judge=JUDGE) > 1.8
    assert proxy_distance(dark, images(200, 0.0, 3), rng(), judge=JUDGE) < 0.6


def test_the_distance_is_the_same_from_the_same_seed() -> None:
    dark, bright = images(40, 0.0, 1), images(40, 0.1, 2)
    one, same = (proxy_distance(dark, bright, rng(5), judge=JUDGE) for _ in range(2))
    assert one == same


def labelled(count: int, seed: int, offset: float = 0.0) -> Examples:
    """Class = which half of the picture is bright."""
    labels = torch.arange(count) % 2
    inputs = 0.2 * torch.rand(count, 1, 8, 8, generator=rng(seed)) + offset
    for at in range(count):
        half = slice(0, 4) if labels[at] else slice(4, 8)
        inputs[at, :, half] += 0.5
    return Examples(inputs.clamp(0, 1), labels)


def test_lambda_is_small_where_one_model_can_do_both_and_large_where_labels_contradict() -> None:
    private = labelled(200, 1)
    assert joint_risk(private, labelled(200, 2, 0.2), rng(), judge=JUDGE) < 0.1
    other = labelled(200, 2)
    against = Examples(other.inputs, 1 - other.labels)
    assert joint_risk(private, against, rng(), judge=JUDGE) > 0.6


def truth(public: PublicSet | None) -> Truth:
    test = labelled(120, 7)
    return Truth(test, ("a",) * 120, {}, test, public=public)


def test_the_bound_of_a_federation_counts_alpha_and_leaves_lambda_unknown_without_labels() -> None:
    foreign = images(90, 0.6, 3)
    mixed = PublicSet(torch.cat([labelled(30, 8).inputs, foreign]), None, torch.tensor([0] * 30 + [1] * 90))
    found = federation_bound(truth(mixed), rng())
    assert found is not None
    assert found.alpha == pytest.approx(0.25)
    assert found.joint is None
    assert found.distance > 1.0
    # Labels of another task say nothing about this one.
    tagged = PublicSet(mixed.inputs, torch.zeros(120, dtype=torch.int64), mixed.domains)
    kept = federation_bound(truth(tagged), rng())
    assert kept is not None
    assert kept.joint is None
    both = federation_bound(truth(tagged), rng(), same_classes=True)
    assert both is not None
    assert both.joint is not None


def test_the_bound_of_a_federation_without_foreign_images_is_zero() -> None:
    own = PublicSet(labelled(20, 8).inputs, None, torch.zeros(20, dtype=torch.int64))
    found = federation_bound(truth(own), rng())
    assert found is not None
    assert found.value == 0.0
    assert federation_bound(truth(None), rng()) is None


def test_the_known_bound_is_that_of_a_federation_once_for_the_same_images() -> None:
    mixed = PublicSet(torch.cat([labelled(30, 8).inputs, images(90, 0.6, 3)]), None, torch.tensor([0] * 30 + [1] * 90))
    found = known_bound(truth(mixed))
    assert found == federation_bound(truth(mixed), rng(), steps=100)
    assert known_bound(truth(mixed)) is found
    assert known_bound(truth(PublicSet(mixed.inputs, None, torch.ones(120, dtype=torch.int64)))) != found
    assert known_bound(truth(None)) is None
    assert known_bound(truth(PublicSet(images(3, 0.6, 3), None, None))) is None  # too few to tell


def test_lambda_stands_beside_a_copy_where_the_foreign_images_have_labels_of_the_private_task() -> None:
    foreign, marks = labelled(90, 8, 0.2), torch.tensor([0] * 30 + [1] * 90)
    inputs = torch.cat([labelled(30, 9).inputs, foreign.inputs])
    labels = torch.cat([torch.arange(30) % 2, foreign.labels])
    found = known_bound(truth(PublicSet(inputs, labels, marks)))
    assert found is not None
    assert found.joint is not None
    assert found.joint < 0.3
    assert found.value == pytest.approx(0.75 * (found.distance / 2 + found.joint))
    # Without labels, or with one that no private example has, nothing is known of it; what is private does not count.
    for other in (None, torch.where(torch.arange(120) == 119, 5, labels)):
        unknown = known_bound(truth(PublicSet(inputs, other, marks)))
        assert unknown is not None
        assert (unknown.joint, unknown.distance) == (None, found.distance)
    strange = known_bound(truth(PublicSet(inputs, torch.where(torch.arange(120) == 0, 5, labels), marks)))
    assert strange is not None
    assert strange.joint is not None


def test_too_few_images_and_other_shapes_are_refused() -> None:
    with pytest.raises(RefusedError, match="at least 4"):
        proxy_distance(images(3, 0, 1), images(9, 0, 2), rng())
    with pytest.raises(ShapeError):
        proxy_distance(images(9, 0, 1), torch.rand(9, 3, 8, 8), rng())
