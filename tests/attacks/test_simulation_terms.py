"""The terms beside the distance: hand-worked numbers, and slopes against autograd."""

from __future__ import annotations

import math

import pytest
import torch
from fedavg_scene import rng
from torch import Tensor

from fedleak.attacks.simulation.terms import OFFSET, LayeredL2, OutOfRange, Smoothness, layer_weights
from fedleak.types import Normalisation

NORMAL = Normalisation((0.2, 0.4), (0.5, 2.0))


def dummies(seed: int = 0) -> Tensor:
    """2 rows of 3 epochs of 2 images, 2x4x5."""
    return torch.randn(2, 3, 2, 2, 4, 5, generator=rng(seed), dtype=torch.float64)


def test_total_variation_wraps_around_and_is_a_mean_over_images() -> None:
    """One row of pixels 0, 1, 3: squared steps 1, 4 and, around the edge, 9; nothing downwards."""
    image = torch.tensor([0.0, 1.0, 3.0]).reshape(1, 1, 1, 1, 1, 3)
    value, _ = Smoothness(0.5)(image)
    assert float(value) == pytest.approx(0.5 * (14 + 6 * OFFSET))
    twice, _ = Smoothness(0.5)(image.repeat(1, 2, 3, 1, 1, 1))
    torch.testing.assert_close(twice, value)


def test_the_absolute_form_does_not_wrap_and_is_a_mean_over_pixels() -> None:
    image = torch.tensor([0.0, 1.0, 3.0]).reshape(1, 1, 1, 1, 1, 3)
    assert float(Smoothness(0.5, "absolute")(image)[0]) == pytest.approx(0.5 * (1 + 2) / 2)


def test_pixels_out_of_range_are_punished_by_their_squared_distance() -> None:
    """Pixels -0.5, 0.25 and 1.2 of one channel: 0.25 + 0 + 0.04."""
    normal = Normalisation((0.5,), (0.25,))
    pixels = torch.tensor([-0.5, 0.25, 1.2]).reshape(1, 1, 1, 1, 1, 3)
    value, slope = OutOfRange(10.0, normal)(normal.apply(pixels))
    assert float(value) == pytest.approx(10 * 0.29, rel=1e-5)
    assert slope.flatten().tolist() == pytest.approx([10 * 2 * -0.5 * 0.25, 0.0, 10 * 2 * 0.2 * 0.25], rel=1e-4)


@pytest.mark.parametrize("term", [Smoothness(0.3), Smoothness(0.3, "absolute"), OutOfRange(0.7, NORMAL)], ids=str)
def test_slopes_are_those_of_the_values(term: Smoothness | OutOfRange) -> None:
    inputs = dummies().requires_grad_()
    values, _ = term(inputs)
    (expected,) = torch.autograd.grad(values.sum(), [inputs])
    torch.testing.assert_close(term(inputs.detach())[1], expected)


def test_layers_weigh_less_the_later_they_come() -> None:
    names = ["0.weight", "0.bias", "3.weight", "3.bias", "7.weight", "7.bias", "9.weight", "9.bias"]
    expected = [math.exp(-layer) for layer in (0, 0, 1, 1, 2, 2, 3, 3)]
    assert layer_weights(names, math.exp(-1)) == pytest.approx(expected)
    assert layer_weights(["scale", "shift"], 0.5) == (1.0, 0.5)


def test_layered_distance() -> None:
    """Weights 1 and 0.5: 1 * (3^2) + 0.5 * (1 + 4) = 11.5, twice that with the factor 2."""
    distance = LayeredL2((1.0, 0.5), 2.0)
    update, target = (
        [torch.tensor([[3.0]]), torch.tensor([[1.0, 5.0]])],
        [torch.tensor([[0.0]]), torch.tensor([[0.0, 3.0]])],
    )
    value, slopes = distance(update, target)
    assert float(value) == pytest.approx(23.0)
    assert [slope.flatten().tolist() for slope in slopes] == [[12.0], [2.0, 4.0]]
