"""Kernels of our own give what plain autograd gives: on a GPU where there is one, else under Triton's interpreter."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedleak.attacks.simulation.conv_layers import layers_of
from fedleak.attacks.simulation.generic_steps import MappedSteps, Steps
from fedleak.attacks.simulation.unroll import Simulation
from fedleak.learning.functional import Network, loss_named

pytest.importorskip(
    "triton", reason="Triton is not installed (it comes with torch on Linux with a GPU, and with [dev])"
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LOSS, LR, CLASSES = loss_named("cross_entropy"), 0.05, 5


@pytest.fixture(scope="module")
def fused() -> Any:
    """Imported here: where Triton is missing the module cannot be imported."""
    return importlib.import_module("fedleak.attacks.simulation.fused_steps").FusedSteps


def network(shape: tuple[int, ...], widths: tuple[int, ...], hidden: int) -> Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        channels, layers = shape[0], []
        for wide in widths:
            layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
            channels = wide
        places = (shape[1] >> len(widths)) * (shape[2] >> len(widths))
        head = [nn.Flatten(), nn.Linear(channels * places, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)]
        return Network(nn.Sequential(*layers, *head).to(DEVICE))


def over_one_step(make: Any, net: Network, shape: tuple[int, ...], images: int, share: Tensor | None) -> list[Tensor]:
    """What two victims' step makes of the weights, and the way back of the dummies and of an adjoint."""
    rng = torch.Generator().manual_seed(1)
    weights = net.initial()
    like = next(iter(weights.values()))
    inputs = torch.randn(2, images, *shape, generator=rng).to(like)
    labels = torch.randint(0, CLASSES, (2, images), generator=rng).to(like.device)
    drawn = {name: torch.randn(2, *value.shape, generator=rng).to(like) for name, value in weights.items()}
    steps: Steps = make(weights)
    state = steps.load({name: value.expand(2, *value.shape) for name, value in weights.items()})
    adjoint = steps.load(drawn)
    share = None if share is None else share.to(like)
    with torch.no_grad():
        kept = steps.forward(state, inputs, labels, share)
        moved = [value.clone() for value in steps.named(state).values()]
        slope = steps.backward(state, adjoint, kept, inputs, labels, share)
    return [*moved, slope, *steps.named(adjoint).values()]


@pytest.mark.parametrize(
    ("shape", "widths", "images"),
    [
        ((1, 8, 8), (3, 4), 2),  # channels that are no power of two
        ((3, 11, 9), (3, 4), 3),  # odd rows and columns, which pooling drops
        ((2, 8, 8), (16, 16, 32), 1),  # one image, three blocks, channels in whole tiles
        ((17, 6, 4), (5,), 2),  # many channels in a first block
        ((1, 4, 4), (2,), 40),  # a batch too large for the usual tiles
        ((1, 4, 4), (2,), 70),  # and one whose dense layers are torch's
    ],
)
def test_a_step_and_its_way_back_are_those_of_autograd(
    fused: Any, shape: tuple[int, ...], widths: tuple[int, ...], images: int
) -> None:
    net = network(shape, widths, 6)
    exact = Network(network(shape, widths, 6).module.double())
    layers = layers_of(net.module, LOSS)
    found = over_one_step(lambda weights: fused(layers, weights, shape, LR), net, shape, images, None)
    expected = over_one_step(lambda weights: MappedSteps(exact, LOSS, weights, LR), exact, shape, images, None)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-6 * float(other.abs().max()))


def test_images_that_are_not_there_do_not_count(fused: Any) -> None:
    shape, share = (1, 8, 8), torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    net = network(shape, (3, 4), 6)
    exact = Network(network(shape, (3, 4), 6).module.double())
    layers = layers_of(net.module, LOSS)
    found = over_one_step(lambda weights: fused(layers, weights, shape, LR), net, shape, 3, share)
    expected = over_one_step(lambda weights: MappedSteps(exact, LOSS, weights, LR), exact, shape, 3, share)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-6 * float(other.abs().max()))


def test_weights_that_are_not_finite_stay_visible(fused: Any) -> None:
    shape = (1, 4, 4)
    net = network(shape, (2,), 3)
    with torch.no_grad():
        next(net.module.parameters()).fill_(float("nan"))
    layers = layers_of(net.module, LOSS)
    found = over_one_step(lambda weights: fused(layers, weights, shape, LR), net, shape, 2, None)
    assert not found[len(net.initial())].isfinite().any()  # the slope by the dummies


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
def test_a_gpu_takes_them_for_float32_and_leaves_float64_alone() -> None:
    net = network((1, 8, 8), (3, 4), 6)

    def engine(net: Network, images: int) -> str:
        like = next(iter(net.initial().values()))
        inputs = torch.randn(2, 2, images, 1, 8, 8).to(like)
        labels = torch.zeros(2, 2, images, dtype=torch.long, device=DEVICE)
        simulation = Simulation(net, LOSS, net.initial(), lr=LR, steps_per_epoch=2)
        simulation(inputs, labels, None, lambda update, _given: (like.new_zeros(2), update))
        return simulation.engine

    assert engine(net, 2) == "fused"
    assert engine(net, 65) == "fused"
    assert engine(Network(network((1, 8, 8), (3, 4), 6).module.double()), 2) == "written out"
