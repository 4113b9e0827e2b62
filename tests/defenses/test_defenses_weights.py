"""DP on weights (dlm.txt eq. 12 and 13) and pruning of weights, by hand."""

from __future__ import annotations

import math

import pydantic
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedleak.defenses import Clip, Context, Defense, Gaussian, Laplace, Plan, Sparsify, chain, label
from fedleak.defenses.layers import clipped_layers, layer_of
from fedleak.types import Gradients, Weights

AT_MESSAGE = Context("message")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def two_layers() -> Weights:
    """Layer norms: |(3, 4)| = 5 for the first (weight and bias together), 0.5 for the second."""
    return Weights(
        {
            "one.weight": torch.tensor([[3.0]]),
            "one.bias": torch.tensor([4.0]),
            "two.weight": torch.tensor([[0.3, 0.4]]),
        }
    )


def test_each_layer_is_clipped_by_its_own_norm_eq_12() -> None:
    sent = Gaussian(sigma=0.0, clip_layers=1.0).apply(two_layers(), AT_MESSAGE, rng()).tensors
    assert sent["one.weight"].item() == pytest.approx(0.6)
    assert sent["one.bias"].item() == pytest.approx(0.8)
    assert torch.equal(sent["two.weight"], two_layers().tensors["two.weight"])


def test_a_layer_is_a_module_with_all_its_parameters() -> None:
    assert [layer_of(n) for n in ("0.weight", "0.bias", "body.0.weight", "alpha")] == ["0", "0", "body.0", "alpha"]


def test_without_a_clip_and_a_group_the_weights_go_out_as_they_are() -> None:
    for defense in (Gaussian(variance=0.0), Laplace(variance=0.0)):
        sent = defense.apply(two_layers(), AT_MESSAGE, rng())
        for name, value in two_layers().tensors.items():
            assert torch.equal(sent.tensors[name], value)


def test_the_group_size_divides_weights_and_noise_alike_eq_13() -> None:
    alone = Gaussian(sigma=0.2).apply(two_layers(), AT_MESSAGE, rng(3)).tensors
    grouped = Gaussian(sigma=0.2, group=4).apply(two_layers(), AT_MESSAGE, rng(3)).tensors
    for name, value in alone.items():
        assert torch.allclose(grouped[name], value / 4)


@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_variance_is_the_variance_of_the_noise(kind: type) -> None:
    zero = Gradients({"w": torch.zeros(40_000)})
    noise = kind(variance=1e-3).apply(zero, AT_MESSAGE, rng()).tensors["w"]
    assert float(noise.var()) == pytest.approx(1e-3, rel=0.05)


def test_the_two_ways_to_give_a_strength_agree_bit_for_bit() -> None:
    pairs: list[tuple[Defense, Defense]] = [
        (Gaussian(sigma=0.5), Gaussian(variance=0.25)),
        (Laplace(scale=0.5), Laplace(variance=0.5)),  # the variance of Laplace noise is 2 scale^2
    ]
    for one, other in pairs:
        mine, theirs = (defense.apply(two_layers(), AT_MESSAGE, rng(5)).tensors for defense in (one, other))
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_behind_a_layer_clip_sigma_counts_in_units_of_the_bound_and_variance_does_not() -> None:
    assert Gaussian(sigma=0.1, clip_layers=3.0).deviation == pytest.approx(0.3)
    assert Gaussian(variance=0.01, clip_layers=3.0).deviation == pytest.approx(0.1)
    assert Laplace(scale=0.1, clip_layers=3.0).spread == pytest.approx(0.3)
    assert Laplace(variance=0.02, clip_layers=3.0).spread == pytest.approx(0.1)


@pytest.mark.parametrize(("kind", "name"), [(Gaussian, "sigma"), (Laplace, "scale")])
def test_exactly_one_strength_is_asked_for_under_its_name(kind: type, name: str) -> None:
    with pytest.raises(pydantic.ValidationError, match="is required, or variance") as missing:
        kind()
    assert missing.value.errors()[0]["loc"] == (name,)
    with pytest.raises(pydantic.ValidationError, match=f"exactly one of {name} or variance"):
        kind(**{name: 0.1, "variance": 0.1})


@given(st.floats(0.01, 10), st.integers(0, 1000))
def test_no_layer_is_longer_than_the_bound_and_clipping_again_changes_nothing(bound: float, seed: int) -> None:
    draw = rng(seed)
    numbers = {name: torch.randn(5, generator=draw) for name in ("a.weight", "a.bias", "b.weight")}
    once = clipped_layers(numbers, bound)
    for layer in ("a", "b"):
        squares = sum(float(v.double().square().sum()) for n, v in once.items() if layer_of(n) == layer)
        assert math.sqrt(squares) <= bound * (1 + 1e-6)
    again = clipped_layers(once, bound)
    assert all(torch.allclose(again[name], once[name], rtol=1e-6) for name in once)


@given(st.integers(0, 1000), st.floats(0.1, 5))
def test_a_layer_clip_brings_neighbours_no_farther_apart(seed: int, bound: float) -> None:
    """Why the proof behind an update clip survives it."""
    draw = rng(seed)
    one, other = ({"a.weight": torch.randn(6, generator=draw, dtype=torch.float64)} for _ in range(2))
    before = float((one["a.weight"] - other["a.weight"]).norm())
    after = float((clipped_layers(one, bound)["a.weight"] - clipped_layers(other, bound)["a.weight"]).norm())
    assert after <= before * (1 + 1e-9)


def test_what_is_proven_with_a_layer_clip() -> None:
    plain = chain(Clip(norm=1.0), Gaussian(sigma=2.0)).guarantee(Plan())
    layered = chain(Clip(norm=1.0), Gaussian(sigma=2.0, clip_layers=1.0)).guarantee(Plan())
    assert layered.epsilon == plain.epsilon
    alone = Gaussian(sigma=2.0, clip_layers=1.0).guarantee(Plan())
    assert (alone.kind, alone.epsilon) == ("none", None)
    removed = chain(Clip(norm=1.0), Gaussian(sigma=2.0, clip_layers=1.0)).guarantee(Plan(neighbours="add_remove"))
    assert removed.kind == "none"


def test_rescaled_weights_leave_no_bound_on_the_update() -> None:
    for defense in (Gaussian(sigma=0.0, group=2), Laplace(scale=0.0, clip_layers=1.0)):
        assert defense.after(Plan(l2_bound=1.0)).l2_bound is None
    assert Gaussian(variance=0.0).after(Plan(l2_bound=1.0)).l2_bound == 1.0


def test_pruning_weights_by_their_size_or_by_their_signed_value() -> None:
    """A quantile over the whole model: half of the six numbers go, wherever they are."""
    sent = Weights({"a": torch.tensor([-3.0, 0.1, 2.0]), "b": torch.tensor([[-0.2], [0.5], [-1.0]])})
    by_size = Sparsify(fraction=0.5, of="weights").apply(sent, AT_MESSAGE, rng()).tensors
    assert by_size["a"].tolist() == [-3.0, 0.0, 2.0]
    assert by_size["b"].flatten().tolist() == [0.0, 0.0, -1.0]
    by_value = Sparsify(fraction=0.5, of="weights", by="signed").apply(sent, AT_MESSAGE, rng()).tensors
    assert by_value["a"].tolist() == [0.0, pytest.approx(0.1), 2.0]
    assert by_value["b"].flatten().tolist() == [0.0, 0.5, 0.0]


def test_a_pruned_weight_puts_its_whole_old_value_into_the_apparent_update() -> None:
    """Why a LeNet withstands even 1 %: -w_t stands where lr * gradient is looked for."""
    broadcast = Weights({"a": torch.tensor([0.50, -0.40])})
    sent = Weights({"a": torch.tensor([0.49, -0.41])})
    out = Sparsify(fraction=0.5, of="weights").apply(sent, Context("message", broadcast=broadcast), rng())
    apparent = broadcast.tensors["a"] - out.tensors["a"]
    assert apparent.tolist() == [pytest.approx(0.01, rel=1e-4), pytest.approx(-0.40)]


def test_labels_name_what_was_given() -> None:
    assert label(Gaussian(variance=1e-5)) == "gaussian(variance=1e-05)"
    assert label(Laplace(scale=0.1, clip_layers=2.0, group=3)) == "laplace(clip_layers=2, group=3, scale=0.1)"
