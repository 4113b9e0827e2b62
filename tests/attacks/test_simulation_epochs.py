"""What epochs agree in, and bringing them into one order: permutations, brute force, hypothesis."""

from __future__ import annotations

import itertools
import math
from typing import Literal

import pytest
import torch
from fedavg_scene import rng
from hypothesis import given, settings
from hypothesis import strategies as st

from fedleak.attacks.simulation.invariants import InvariantPrior, pairwise, random_kernel
from fedleak.attacks.simulation.matching import epoch_order, in_order, pair_costs

G = ("mean", "max", "conv_mean", "conv_max", "class_mean")


def prior(g: str, norm: str, labels: torch.Tensor, clients: int = 1) -> InvariantPrior:
    kernels = [random_kernel(2, rng(number)) for number in range(clients)]
    return InvariantPrior(g, norm, kernels, labels)  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("g", G)
def test_the_same_images_in_any_order_cost_nothing(g: str, norm: str) -> None:
    images, labels = torch.rand(5, 2, 4, 4, generator=rng()), torch.tensor([0, 1, 1, 3, 3])
    orders = [torch.randperm(5, generator=rng(seed)) for seed in range(3)]
    epochs = torch.stack([images[order] for order in orders])[None]
    invariant = prior(g, norm, torch.stack([labels[order] for order in orders])[None])
    assert float(invariant(epochs)[0]) < 1e-6
    other = epochs.clone()
    other[0, 1, 2] += 1.0
    assert float(invariant(other)[0]) > 1e-3


def test_every_single_image_is_told_by_its_label_where_labels_differ_and_else_by_its_place() -> None:
    images, labels = torch.rand(4, 2, 3, 3, generator=rng()), torch.tensor([2, 0, 3, 1])
    orders = [torch.randperm(4, generator=rng(seed)) for seed in range(3)]
    epochs = torch.stack([images[order] for order in orders])[None]
    shuffled = torch.stack([labels[order] for order in orders])[None]
    assert float(prior("image", "l2", shuffled)(epochs)[0]) < 1e-12
    twins = torch.tensor([1, 1, 0, 0]).expand(1, 3, 4)
    assert float(prior("image", "l2", twins)(images.expand(1, 3, *images.shape))[0]) < 1e-12
    assert float(prior("image", "l2", twins)(epochs)[0]) > 1e-3


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_pairs_are_all_ordered_pairs(norm: Literal["l1", "l2"]) -> None:
    values = torch.randn(4, 3, 2, generator=rng(), dtype=torch.float64)
    apart = [one - other for one, other in itertools.product(values, repeat=2)]
    expected = torch.stack([a.abs().mean() if norm == "l1" else a.square().mean() for a in apart]).mean()
    torch.testing.assert_close(pairwise(values[None], norm), expected[None])


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("g", G)
def test_slopes_are_those_of_the_values(g: str, norm: str) -> None:
    inputs = torch.randn(2, 3, 4, 2, 3, 3, generator=rng())
    labels = torch.tensor([0, 1, 1, 2]).expand(2, 3, 4)
    invariant = prior(g, norm, labels, clients=2)
    _, slopes = invariant(inputs)
    direction = torch.randn(inputs.shape, generator=rng(1))
    step = 1e-3
    ahead, behind = (invariant(inputs + sign * step * direction)[0] for sign in (1, -1))
    along = (slopes * direction).flatten(1).sum(dim=1)
    torch.testing.assert_close(along, (ahead - behind) / (2 * step), rtol=3e-2, atol=3e-4)


def test_one_epoch_has_nothing_to_agree_with() -> None:
    inputs = torch.randn(2, 1, 3, 2, 3, 3, generator=rng())
    values, slopes = prior("mean", "l2", torch.zeros(2, 1, 3, dtype=torch.long))(inputs)
    assert not values.any()
    assert not slopes.any()


def test_clients_are_chosen_with_their_own_kernel_and_labels() -> None:
    inputs = torch.randn(3, 2, 4, 2, 3, 3, generator=rng())
    whole = prior("conv_max", "l2", torch.zeros(3, 2, 4, dtype=torch.long), clients=3)
    torch.testing.assert_close(whole.take([2, 0])(inputs[[2, 0]])[0], whole(inputs)[0][[2, 0]])


def test_the_random_convolution_is_lecun_normal() -> None:
    kernel = torch.cat([random_kernel(3, rng(seed)) for seed in range(20)])
    assert kernel.shape[1:] == (3, 3, 3)
    assert float(kernel.std()) == pytest.approx(math.sqrt(1 / 27), rel=0.02)
    assert float(kernel.abs().max()) <= 2 * math.sqrt(1 / 27) / 0.8796 + 1e-6


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 5))
def test_matching_recovers_a_permutation(seed: int, images: int, epochs: int) -> None:
    draw = rng(seed)
    true = torch.rand(images, 1, 4, 4, generator=draw)
    orders = [torch.randperm(images, generator=draw) for _ in range(epochs)]
    noisy = torch.stack([true[order] + 0.01 * torch.randn(true.shape, generator=draw) for order in orders])
    matched = in_order(noisy, epoch_order(noisy))
    assert float((matched - true[orders[0]]).abs().max()) < 0.1


def test_only_images_of_one_label_are_matched_where_labels_are_given() -> None:
    """Two look-alikes with different labels, swapped in the second epoch."""
    one, other = torch.zeros(1, 2, 2), torch.full((1, 2, 2), 0.01)
    pixels = torch.stack([torch.stack([one, other]), torch.stack([one, other])])
    labels = torch.tensor([[0, 1], [1, 0]])
    assert epoch_order(pixels).tolist() == [[0, 1], [0, 1]]
    assert epoch_order(pixels, labels).tolist() == [[0, 1], [1, 0]]


def test_costs_are_minus_the_psnr() -> None:
    cost = pair_costs(torch.full((1, 1, 2, 2), 0.1), torch.zeros(2, 1, 2, 2))
    assert cost.flatten().tolist() == pytest.approx([-20.0, -20.0], abs=1e-5)


def test_pictures_that_are_not_finite_do_not_stop_the_matching() -> None:
    pixels = torch.rand(2, 3, 1, 2, 2, generator=rng())
    pixels[1, 0] = torch.nan
    assert sorted(epoch_order(pixels)[1].tolist()) == [0, 1, 2]
