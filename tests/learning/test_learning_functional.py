"""Networks as functions, the loss, and accuracy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedleak.errors import RefusedError
from fedleak.learning.functional import Network, accuracy, cross_entropy, loss_named, predict


def test_soft_targets_that_are_one_hot_give_the_same_loss_as_indices() -> None:
    rng = torch.Generator().manual_seed(0)
    outputs, labels = torch.randn(6, 4, generator=rng), torch.randint(0, 4, (6,), generator=rng)
    soft = nn.functional.one_hot(labels, 4).float()
    assert torch.allclose(cross_entropy(outputs, soft), nn.functional.cross_entropy(outputs, labels))


def test_soft_targets_agree_with_torch() -> None:
    rng = torch.Generator().manual_seed(1)
    outputs, soft = torch.randn(6, 4, generator=rng), torch.rand(6, 4, generator=rng).softmax(-1)
    assert torch.allclose(cross_entropy(outputs, soft), nn.functional.cross_entropy(outputs, soft))


def test_an_unknown_loss_is_refused_with_the_known_ones() -> None:
    with pytest.raises(RefusedError, match=r"loss='hinge'.*cross_entropy"):
        loss_named("hinge")


def test_a_network_uses_the_parameters_it_is_given_and_keeps_its_own() -> None:
    network = Network(nn.Linear(2, 1, bias=False))
    own = network.initial()
    outputs = network({"weight": torch.tensor([[2.0, 3.0]])}, torch.tensor([[1.0, 1.0]]))
    assert outputs.tolist() == [[5.0]]
    assert torch.equal(network.initial()["weight"], own["weight"])


def test_batch_norm_statistics_of_the_module_are_never_touched() -> None:
    network = Network(nn.BatchNorm1d(2))
    network(network.initial(), torch.tensor([[1.0, 5.0], [3.0, 9.0]]))
    assert network.buffers()["running_mean"].tolist() == [0.0, 0.0]
    assert int(network.buffers()["num_batches_tracked"]) == 0


def test_prediction_in_batches_is_prediction_at_once() -> None:
    network = Network(nn.Linear(3, 2))
    inputs = torch.randn(7, 3, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(
        predict(network, network.initial(), inputs, 3), network(network.initial(), inputs).detach(), atol=1e-6
    )


def test_accuracy_is_one_number_per_example() -> None:
    network = Network(nn.Linear(2, 2, bias=False))
    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    right = accuracy(network, {"weight": torch.eye(2)}, inputs, torch.tensor([0, 1, 1]))
    assert right.tolist() == [1.0, 1.0, 0.0]
