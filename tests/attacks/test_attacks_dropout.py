"""Networks with dropout: what a client dropped nobody knows, so an attack drops nothing, and its dice stay its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedleak import Examples, attack, simulate
from fedleak.attacks.inversion.victims import network_of
from fedleak.types import ModelSpec, Setup, Transcript, Weights


class Layer(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(16, 12), nn.Sigmoid(), nn.Dropout(0.5), nn.Linear(12, 3))


class Functional(nn.Module):
    """Its own way to drop, behind a normalisation by the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 12), nn.BatchNorm1d(12), nn.Linear(12, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        made = torch.sigmoid(self.norm(self.first(inputs.flatten(1))))
        found: Tensor = self.last(F.dropout(made, 0.5, self.training))
        return found


def recording(model: Any, protocol: str) -> Transcript:
    rng = torch.Generator().manual_seed(0)
    clients = {
        f"client-{k}": Examples(torch.rand(2, 1, 4, 4, generator=rng), torch.tensor([k, k + 1])) for k in range(2)
    }
    test = Examples(torch.rand(3, 1, 4, 4, generator=rng), torch.arange(3))
    return simulate(clients, test, model=model, protocol=protocol, device="cpu").transcript


@pytest.mark.parametrize(
    ("model", "protocol", "name"),
    [
        (Layer, "fedsgd", "dlg"),
        (Layer, "fedavg", "dlm_plus"),
        (Layer, "fedavg", "fedavg_simulation"),
        (Layer, "fedavg", "sme"),
        (Functional, "fedavg", "dlm_plus"),
        (Functional, "fedavg", "fedavg_simulation"),
        (Functional, "fedavg", "sme"),
    ],
)
def test_the_same_seed_gives_the_same_bits(model: Any, protocol: str, name: str) -> None:
    seen = recording(model, protocol)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = attack(seen, name, steps=3, restarts=0, device="cpu")
    assert torch.equal(torch.get_rng_state(), state), "the global generator was left changed"
    torch.manual_seed(2)
    two = attack(seen, name, steps=3, restarts=0, device="cpu")
    for mine, again in zip(one.victims, two.victims, strict=True):
        assert mine.status == "ok"
        assert torch.equal(mine.inputs, again.inputs)


def test_nothing_is_dropped_and_batches_are_normalised_as_in_training() -> None:
    torch.manual_seed(0)
    module = Functional()
    broadcast = Weights(
        {name: value.detach() for name, value in module.named_parameters()}, dict(module.named_buffers())
    )
    network = network_of(Setup(ModelSpec("own", {}, Functional), (1, 4, 4), 3), broadcast)
    inputs = torch.rand(5, 1, 4, 4)
    module.norm.train()
    made = module.norm(module.first(inputs.flatten(1))).sigmoid()
    torch.testing.assert_close(network(broadcast.tensors, inputs), module.last(made))
