"""Through a linear layer with a bias one image needs no search: x = dW_i / db_i (weight_leakage.md section 5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedleak.attacks.inversion.dlm_plus import DLMPlus
from fedleak.learning.updates import apparent_gradient
from fedleak.types import ModelSpec


@pytest.mark.parametrize("sends", ["gradients", "weights"])
def test_the_first_layer_of_an_mlp_gives_the_image_away(sends: str, scene: Callable) -> None:
    """In every row with a gradient, whatever the scale of the update: the apparent gradient is right in all of them."""
    made = scene((1,), model=ModelSpec("mlp"), sends=sends, dtype=torch.float64, shape=(3, 8, 8))
    (round_,) = made.transcript.rounds
    update = apparent_gradient(round_, round_.received[0])
    weight, bias = update["1.weight"], update["1.bias"]
    rows = bias.abs() > 1e-6
    assert rows.sum() > 3
    images = (weight[rows] / bias[rows, None]).reshape(-1, 3, 8, 8)
    torch.testing.assert_close(images, made.images[0].expand_as(images), rtol=1e-5, atol=1e-7)


def test_the_search_finds_what_the_closed_form_says(scene: Callable, psnr: Callable) -> None:
    made = scene((1,), model=ModelSpec("mlp"), sends="weights", dtype=torch.float64)
    (round_,) = made.transcript.rounds
    update = apparent_gradient(round_, round_.received[0])
    row = int(update["1.bias"].abs().argmax())
    exact = (update["1.weight"][row] / update["1.bias"][row]).reshape(1, 1, 8, 8)
    (victim,) = DLMPlus(steps=40)(made.transcript, rng=torch.Generator().manual_seed(0)).victims
    assert psnr(victim.inputs, exact) > 30
