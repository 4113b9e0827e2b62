"""The FedAvg paper's networks: their published sizes, and the initial values that decide how much they leak."""

from __future__ import annotations

import math

import pydantic
import pytest
import torch
from torch import nn

from fedleak.models import build_model
from fedleak.types import ModelSpec


@pytest.mark.parametrize(
    ("name", "shape", "classes", "published"),
    [("cnn_femnist", (1, 28, 28), 62, 338_778), ("cnn_cifar100", (3, 32, 32), 100, 1_734_348)],
)
def test_the_published_numbers_of_parameters(name: str, shape: tuple[int, ...], classes: int, published: int) -> None:
    module = build_model(ModelSpec(name), shape, classes)
    assert sum(value.numel() for value in module.parameters()) == published


def test_lecun_normal_has_variance_one_over_fan_in_within_two_deviations_and_no_bias() -> None:
    module = build_model(ModelSpec("cnn_cifar100"), (3, 32, 32), 100, torch.Generator().manual_seed(0))
    layers = [layer for layer in module if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert [layer.weight[0].numel() for layer in layers] == [27, 576, 8192, 200]
    for layer in layers:
        fan_in = layer.weight[0].numel()
        # The cut at 2 shrinks the variance of a standard normal to 0.7737; without the correction this is 0.77.
        assert float(layer.weight.detach().var()) * fan_in == pytest.approx(1.0, rel=0.06)
        assert float(layer.weight.detach().abs().max()) <= 2 / 0.8796 / math.sqrt(fan_in)
        assert layer.bias is not None
        assert not layer.bias.any()


def test_torch_initialisation_is_torchs_own() -> None:
    module = build_model(ModelSpec("cnn_femnist", {"init": "torch"}), (1, 28, 28), 62, torch.Generator().manual_seed(0))
    first = module[0]
    assert isinstance(first, nn.Conv2d)
    assert first.bias is not None
    assert first.bias.any()
    # torch draws from U(-1/sqrt(fan_in), 1/sqrt(fan_in)): a third of lecun's variance
    hidden = module[7]
    assert isinstance(hidden, nn.Linear)
    assert float(hidden.weight.detach().var()) * hidden.in_features == pytest.approx(1 / 3, rel=0.02)


def test_ten_digits_fit_and_another_initialisation_is_refused() -> None:
    module = build_model(ModelSpec("cnn_femnist"), (1, 16, 16), 10)
    assert module(torch.zeros(3, 1, 16, 16)).shape == (3, 10)
    with pytest.raises(pydantic.ValidationError, match="init"):
        build_model(ModelSpec("cnn_femnist", {"init": "he"}), (1, 16, 16), 10)


def test_the_generator_decides_the_lecun_kernels() -> None:
    one, two, other = (
        build_model(ModelSpec("cnn_femnist"), (1, 8, 8), 3, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    for a, b, c in zip(one.parameters(), two.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c) == (a.dim() == 1)  # biases start at zero
