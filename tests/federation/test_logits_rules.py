"""What a server makes of predictions, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedleak.errors import ShapeError
from fedleak.federation.logits.aggregation import as_probabilities, ensemble, mean_of, sharpened, teachers
from fedleak.federation.logits.fedgems import guided, selective

SURE, LESS = [0.9, 0.1], [0.6, 0.4]
H_SURE = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))  # 0.3250830
H_LESS = -(0.6 * math.log(0.6) + 0.4 * math.log(0.4))  # 0.6730117


def test_the_mean_counts_every_client_alike() -> None:
    sent = torch.tensor([[[1.0, 2.0, -3.0]], [[3.0, 0.0, 1.0]], [[2.0, 1.0, -1.0]]])
    assert mean_of(sent).tolist() == [[2.0, 1.0, -1.0]]


def test_entropy_reduction_of_probabilities_by_hand() -> None:
    # mean (0.6, 0.4); e^6 / (e^6 + e^4) = 1 / (1 + e^-2)
    sent = torch.tensor([[[0.8, 0.2]], [[0.4, 0.6]]])
    expected = 1 / (1 + math.exp(-2))
    assert sharpened(sent, 0.1)[0].tolist() == pytest.approx([expected, 1 - expected], abs=1e-6)


def test_entropy_reduction_of_logits_by_hand() -> None:
    # mean (1, 0); e^2 / (e^2 + 1) at temperature 0.5
    sent = torch.tensor([[[2.0, 1.0]], [[0.0, -1.0]]])
    expected = math.exp(2) / (math.exp(2) + 1)
    assert sharpened(sent, 0.5)[0].tolist() == pytest.approx([expected, 1 - expected], abs=1e-6)


@given(st.lists(st.floats(-3, 3), min_size=3, max_size=3), st.floats(0.05, 0.9))
def test_entropy_reduction_keeps_the_order_and_sharpens(values: list[float], temperature: float) -> None:
    mean = torch.tensor([[values]], dtype=torch.float64)
    found = sharpened(mean, temperature)[0]
    assert float(found.sum()) == pytest.approx(1)
    assert float(found.max()) >= float(torch.softmax(mean[0, 0], dim=-1).max()) - 1e-12


def test_clients_that_are_right_are_weighed_by_how_sure_they_are() -> None:
    """Two clients are right, one surer; the third is wrong and does not count, however sure it is."""
    sent = torch.tensor([[SURE], [LESS], [[0.001, 0.999]]])
    together, known = ensemble(sent, torch.tensor([0]), "probabilities")
    one, two = math.exp(1 / H_SURE), math.exp(1 / H_LESS)
    weight = one / (one + two)
    assert weight == pytest.approx(0.83070, abs=1e-4)
    assert known.tolist() == [True]
    expected = weight * 0.9 + (1 - weight) * 0.6
    assert together[0].tolist() == pytest.approx([expected, 1 - expected], abs=1e-5)


def test_of_logits_the_logits_are_weighed() -> None:
    sent = torch.tensor([[SURE], [LESS]]).log() + torch.tensor([[[5.0]], [[-1.0]]])  # a shift changes no probability
    together, _ = ensemble(sent, torch.tensor([0]), "logits")
    one, two = math.exp(1 / H_SURE), math.exp(1 / H_LESS)
    weight = one / (one + two)
    margin = weight * math.log(9) + (1 - weight) * math.log(1.5)
    assert together[0].tolist() == pytest.approx([1 / (1 + math.exp(-margin)), 1 / (1 + math.exp(margin))], abs=1e-5)


def test_where_no_client_is_right_nothing_is_known_and_nothing_breaks() -> None:
    sent = torch.tensor([[SURE, SURE], [LESS, LESS]])
    together, known = ensemble(sent, torch.tensor([1, 0]), "probabilities")
    assert known.tolist() == [False, True]
    assert bool(together.isfinite().all())


def test_a_client_that_is_certain_takes_all_the_weight() -> None:
    sent = torch.tensor([[[1.0, 0.0]], [LESS]])
    together, _ = ensemble(sent, torch.tensor([0]), "probabilities")
    assert together[0].tolist() == pytest.approx([1.0, 0.0], abs=1e-6)


def test_the_store_goes_before_the_clients() -> None:
    stored = torch.tensor([SURE, [0.0, 0.0], [0.0, 0.0]])
    has = torch.tensor([True, False, False])
    together = torch.tensor([LESS, LESS, LESS])
    teacher, taught = teachers(stored, has, together, torch.tensor([True, True, False]))
    assert taught.tolist() == [True, True, False]
    assert torch.equal(teacher[:2], torch.tensor([SURE, LESS]))
    alone, only = teachers(stored, has)
    assert only.tolist() == [True, False, False]
    assert torch.equal(alone, stored)


def test_the_selective_loss_by_hand() -> None:
    """Right: cross-entropy. Wrong with a teacher: 0.75 CE + 0.25 KL. Wrong without: cross-entropy."""
    chances = torch.tensor([[0.8, 0.2], [0.2, 0.8], [0.2, 0.8]])
    labels = torch.tensor([0, 0, 0])
    teacher = torch.tensor([SURE, SURE, SURE])
    taught = torch.tensor([True, True, False])
    apart = 0.9 * math.log(0.9 / 0.2) + 0.1 * math.log(0.1 / 0.8)
    right, wrong = -math.log(0.8), -math.log(0.2)
    expected = (right + 0.75 * wrong + 0.25 * apart + wrong) / 3
    assert float(selective(0.75)(chances.log(), labels, teacher, taught)) == pytest.approx(expected, abs=1e-6)
    both = (0.75 * wrong + 0.25 * apart) / 1
    assert float(guided(0.75)(chances[1:2].log(), labels[:1], teacher[:1])) == pytest.approx(both, abs=1e-6)


def test_probabilities_that_a_defense_moved_become_probabilities() -> None:
    moved = torch.tensor([[0.7, -0.1, 0.3]])
    assert as_probabilities(moved, "probabilities")[0].tolist() == pytest.approx([0.7, 0.0, 0.3])
    assert float(as_probabilities(moved, "logits").sum()) == pytest.approx(1)


@pytest.mark.parametrize("shape", [(2, 3), (0, 2, 3)])
def test_predictions_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="clients, examples, classes"):
        mean_of(torch.zeros(shape))
