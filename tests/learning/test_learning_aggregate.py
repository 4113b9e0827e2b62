"""The weighted mean by hand."""

from __future__ import annotations

import pytest
import torch

from fedleak.errors import RefusedError, ShapeError
from fedleak.learning.aggregate import weighted_mean


def test_by_hand() -> None:
    one = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([[0.0]])}
    two = {"w": torch.tensor([5.0, -2.0]), "b": torch.tensor([[8.0]])}
    mean = weighted_mean([one, two], [3, 1])
    assert mean["w"].tolist() == [2.0, 1.0]
    assert mean["b"].tolist() == [[2.0]]


def test_only_the_proportion_of_weights_matters() -> None:
    values = [{"w": torch.tensor([float(i), i * i])} for i in range(3)]
    assert torch.allclose(weighted_mean(values, [1, 2, 5])["w"], weighted_mean(values, [10, 20, 50])["w"])


def test_one_client_is_its_own_mean_bit_for_bit() -> None:
    value = {"w": torch.randn(50, generator=torch.Generator().manual_seed(0))}
    assert torch.equal(weighted_mean([value], [28])["w"], value["w"])


def test_whole_numbers_stay_whole() -> None:
    mean = weighted_mean([{"n": torch.tensor(4)}, {"n": torch.tensor(7)}], [1, 1])
    assert mean["n"].dtype == torch.int64
    assert int(mean["n"]) in (5, 6)


def test_the_order_of_names_is_kept() -> None:
    assert list(weighted_mean([{"z": torch.ones(1), "a": torch.ones(1)}], [1])) == ["z", "a"]


@pytest.mark.parametrize(("values", "weights"), [([], []), ([{"w": torch.ones(1)}], []), ([{"w": torch.ones(1)}], [0])])
def test_nothing_to_average_is_refused(values: list[dict[str, torch.Tensor]], weights: list[float]) -> None:
    with pytest.raises(RefusedError):
        weighted_mean(values, weights)


def test_different_shapes_are_never_broadcast() -> None:
    with pytest.raises(ShapeError):
        weighted_mean([{"w": torch.ones(2)}, {"w": torch.ones(1)}], [1, 1])
