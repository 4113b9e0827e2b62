"""DP-SGD as the defense does it: clipping and noise by hand, and a proof only where the plan says enough for one."""

from __future__ import annotations

import pytest
import torch

from fedleak.defenses import DPSGD, Context, Plan
from fedleak.defenses.accounting import gaussian_epsilon


def test_a_step_is_the_mean_of_clipped_gradients() -> None:
    """By hand: lengths 5 and 0.5 at a bound of 1; the mean of (0.6, 0.8) and (0.3, 0.4)."""
    given = {"w": torch.tensor([[3.0, 4.0], [0.3, 0.4]])}
    made = DPSGD(noise_multiplier=0.0, max_grad_norm=1.0)
    out = made.apply(given, Context(stage="gradients"), torch.Generator())
    assert torch.allclose(out["w"].mean(dim=0), torch.tensor([0.45, 0.6]))


def test_the_length_of_an_examples_gradient_is_taken_over_all_tensors() -> None:
    """3 and 4 in two tensors have length 5; clipped tensor by tensor they would stay at (1, 1)."""
    given = {"w": torch.tensor([[[3.0]], [[0.0]]]), "b": torch.tensor([[4.0], [0.0]])}
    out = DPSGD(noise_multiplier=0.0, max_grad_norm=1.0).apply(given, Context(stage="gradients"), torch.Generator())
    assert out["w"].flatten().tolist() == pytest.approx([0.6, 0.0])
    assert out["b"].flatten().tolist() == pytest.approx([0.8, 0.0]), "a gradient of zeros stays one"


def test_a_gradient_that_is_not_finite_counts_as_zeros() -> None:
    """Clipped it would still not be a number, and tell through any noise that the example is there."""
    given = {"w": torch.tensor([[3.0, 4.0], [float("nan"), 1.0], [float("inf"), 1.0]])}
    out = DPSGD(noise_multiplier=0.0, max_grad_norm=1.0).apply(given, Context(stage="gradients"), torch.Generator())
    assert torch.allclose(out["w"], torch.tensor([[0.6, 0.8], [0.0, 0.0], [0.0, 0.0]]))


def test_the_noise_on_the_sum_has_the_stated_size() -> None:
    count, wide = 8, 50_000
    given = {"w": torch.zeros(count, wide)}
    out = DPSGD(noise_multiplier=1.5, max_grad_norm=0.4).apply(
        given, Context(stage="gradients"), torch.Generator().manual_seed(0)
    )
    total = out["w"].sum(dim=0)
    assert float(total.std()) == pytest.approx(1.5 * 0.4, rel=0.02)


def test_every_step_and_every_tensor_has_noise_of_its_own() -> None:
    made, rng = DPSGD(noise_multiplier=1.0, max_grad_norm=1.0), torch.Generator().manual_seed(0)
    given = {"a": torch.zeros(2, 9), "b": torch.zeros(2, 9)}
    first, second = (made.apply(given, Context(stage="gradients"), rng) for _ in range(2))
    assert not torch.equal(first["a"], first["b"])
    assert not torch.equal(first["a"], second["a"])


def test_the_defense_states_no_epsilon_that_it_cannot_know() -> None:
    made = DPSGD(noise_multiplier=4.0, max_grad_norm=1.0)
    assert made.guarantee(Plan(rounds=5, epochs=3, buffers=True)).kind == "none"
    assert made.guarantee(Plan(rounds=5)).kind == "none", "the number of local epochs is not known"
    assert DPSGD(noise_multiplier=0.0, max_grad_norm=1.0).guarantee(Plan(rounds=5, epochs=3)).kind == "none"
    promised = made.guarantee(Plan(rounds=5, epochs=3))
    assert promised.epsilon == pytest.approx(gaussian_epsilon(4.0, 2.0, 1e-5, 15))
    assert "example level" in promised.statement


def test_an_example_left_out_moves_the_sum_half_as_far_as_one_replaced() -> None:
    made = DPSGD(noise_multiplier=4.0, max_grad_norm=0.3)
    left_out = made.guarantee(Plan(rounds=5, epochs=3, neighbours="add_remove"))
    assert left_out.epsilon == pytest.approx(gaussian_epsilon(4.0, 1.0, 1e-5, 15))
    assert (left_out.kind, left_out.delta) == ("dp", 1e-5)
    assert "left out" in left_out.statement
    for silent in (Plan(rounds=5, epochs=3, predictions="probabilities", examples=4), Plan(5, 3, buffers=True)):
        assert (made.guarantee(silent).kind, made.guarantee(silent).epsilon) == ("none", None)
