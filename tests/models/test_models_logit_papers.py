"""The networks of the logit papers: their sizes, and that the order of pooling and ReLU does not matter."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pydantic
import pytest
import torch
from torch import nn

from fedleak.errors import RefusedError
from fedleak.models import build_model
from fedleak.models.logit_papers import AdaMSACNN
from fedleak.types import ModelSpec


def parameters(module: nn.Module) -> int:
    return sum(value.numel() for value in module.parameters())


def test_pli_cnn_has_the_printed_linear_layer_at_64_pixels() -> None:
    module = build_model(ModelSpec("pli_cnn"), (3, 64, 64), 1000, torch.Generator().manual_seed(0))
    assert isinstance(module, nn.Sequential)
    assert module[-1].in_features == 12800
    assert parameters(module) == 32 * 27 + 32 + 12800 * 1000 + 1000


@pytest.mark.parametrize(
    ("widths", "shape", "flat"),
    [((128, 256), (1, 28, 28), 256 * 49), ((64, 128, 256), (3, 32, 32), 256 * 16), ((8,), (3, 9, 13), 8 * 4 * 6)],
)
def test_adamsa_cnn_counts_its_inputs(widths: tuple[int, ...], shape: tuple[int, ...], flat: int) -> None:
    module = build_model(ModelSpec("adamsa_cnn", {"widths": widths}), shape, 10, torch.Generator().manual_seed(0))
    assert isinstance(module, nn.Sequential)
    assert module[-1].in_features == flat
    assert sum(isinstance(layer, nn.Conv2d) for layer in module) == len(widths)
    assert module(torch.rand(2, *shape)).shape == (2, 10)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "given", "side"), [("adamsa_cnn", {"widths": (4, 4, 4, 4)}, 8), ("pli_cnn", {}, 2), ("cnn", {}, 3)]
)
def test_pictures_that_poolings_leave_nothing_of_are_refused(name: str, given: dict[str, Any], side: int) -> None:
    with pytest.raises(RefusedError, match=f"model='{name}': pictures of {side}x{side} are too small .*fewer layers"):
        build_model(ModelSpec(name, given), (1, side, side), 10)


def test_adamsa_cnn_can_be_normalised_and_dropped_out_as_fedmds_own() -> None:
    """Every convolution is followed by its norm, then pooling, ReLU and dropout; by default there are neither."""
    fields = {"widths": (4, 6), "norm": "batch", "dropout": 0.2}
    module = build_model(ModelSpec("adamsa_cnn", fields), (1, 8, 8), 3, torch.Generator().manual_seed(0))
    assert isinstance(module, nn.Sequential)
    block = [nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.ReLU, nn.Dropout]
    assert [type(layer) for layer in module] == [*block, *block, nn.Flatten, nn.Linear]
    plain = build_model(ModelSpec("adamsa_cnn", {"widths": (4, 6)}), (1, 8, 8), 3, torch.Generator().manual_seed(0))
    assert isinstance(plain, nn.Sequential)
    assert not any(isinstance(layer, nn.BatchNorm2d | nn.Dropout) for layer in plain)


@pytest.mark.parametrize("size", [28, 32])
def test_alexnet_has_eight_layers(size: int) -> None:
    module = build_model(ModelSpec("alexnet", {"hidden": 64}), (3, size, size), 10, torch.Generator().manual_seed(0))
    assert sum(isinstance(layer, nn.Conv2d | nn.Linear) for layer in module.modules()) == 8
    assert module(torch.rand(2, 3, size, size)).shape == (2, 10)
    assert not torch.equal(module.train()(torch.ones(1, 3, size, size)), module(torch.ones(1, 3, size, size)))


@pytest.mark.parametrize("name", ["pli_cnn", "adamsa_cnn"])
def test_pooling_before_relu_is_the_printed_network(name: str) -> None:
    """Outputs and gradients are those of convolution, ReLU, pooling, bit by bit."""
    ours = build_model(ModelSpec(name), (1, 16, 16), 5, torch.Generator().manual_seed(0))
    assert isinstance(ours, nn.Sequential)
    layers = list(ours)
    for at, layer in enumerate(layers[:-1]):
        if isinstance(layer, nn.MaxPool2d):
            layers[at], layers[at + 1] = layers[at + 1], layers[at]
    printed = nn.Sequential(*layers)
    assert any(isinstance(a, nn.ReLU) and isinstance(b, nn.MaxPool2d) for a, b in pairwise(layers))
    inputs = torch.rand(4, 1, 16, 16, generator=torch.Generator().manual_seed(1)) - 0.5
    found = [torch.autograd.grad(net(inputs).square().sum(), list(net.parameters())) for net in (ours, printed)]
    assert torch.equal(ours(inputs), printed(inputs))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("widths", [(), (0,), (1, 2, 3, 4, 5)])
def test_widths_that_make_no_network_are_refused(widths: tuple[int, ...]) -> None:
    with pytest.raises(pydantic.ValidationError, match="widths"):
        AdaMSACNN(widths=widths)
