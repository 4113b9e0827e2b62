"""A user's own module in a federation: buffers, dropout, modules that cannot be stacked."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedleak.defenses import identity
from fedleak.errors import RefusedError
from fedleak.federation import FedAvg, FedSGD, Problem
from fedleak.seeding import Seeds
from fedleak.types import Examples, ModelSpec, Recording, Weights


def problem(factory: Callable[[], nn.Module], clients: int = 3, each: int = 6) -> Problem:
    rng = torch.Generator().manual_seed(0)

    def some(count: int) -> Examples:
        return Examples(torch.rand(count, 1, 4, 4, generator=rng), torch.arange(count) % 2)

    spec = ModelSpec("mine", factory=factory)
    return Problem({f"c{at}": some(each) for at in range(clients)}, some(5), spec, (1, 4, 4), 2)


def weights(recording: Recording, client: int) -> Weights:
    payload = recording.transcript.round(1).received[client].payload
    assert isinstance(payload, Weights)
    return payload


def normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))


class Branching(nn.Module):
    """Decides by a number in the data: vmap cannot follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.linear(inputs.flatten(1))
        return outputs * 2 if float(inputs.sum()) > 0 else outputs


def test_any_module_through_its_factory() -> None:
    made = problem(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2)))
    run = FedAvg(rounds=2, epochs=2, batch_size=4)(made, identity, Seeds(0))
    assert list(weights(run, 0).tensors) == ["1.weight", "1.bias"]
    assert run.transcript.setup.model.name == "mine"


@pytest.mark.parametrize("vectorise", ["always", "never"])
def test_batch_norm_statistics_are_sent_and_averaged(vectorise: str) -> None:
    protocol = FedAvg(rounds=2, epochs=1, record="all", vectorise=vectorise)  # type: ignore[arg-type]
    run = protocol(problem(normed), identity, Seeds(1))
    means = torch.stack([weights(run, client).buffers["1.running_mean"] for client in range(3)])
    assert not torch.equal(means[0], means[1])
    second = run.transcript.round(2).broadcast
    assert isinstance(second, Weights)
    assert torch.allclose(second.buffers["1.running_mean"], means.mean(dim=0), atol=1e-6)
    assert int(second.buffers["1.num_batches_tracked"]) == 1


def test_stacked_batch_norm_agrees_with_one_by_one() -> None:
    one, two = (
        FedAvg(epochs=2, batch_size=3, vectorise=how)(problem(normed), identity, Seeds(2))  # type: ignore[arg-type]
        for how in ("always", "never")
    )
    for client in range(3):
        for name, value in weights(one, client).tensors.items():
            assert torch.allclose(value, weights(two, client).tensors[name], atol=1e-5)
        for name, value in weights(one, client).buffers.items():
            assert torch.allclose(value, weights(two, client).buffers[name], atol=1e-5)


def test_fedsgd_cannot_carry_running_statistics_and_says_so() -> None:
    with pytest.raises(RefusedError, match="fedavg"):
        FedSGD()(problem(normed), identity, Seeds(0))


def test_a_module_that_cannot_be_stacked_runs_one_by_one() -> None:
    one, two = (
        FedAvg(epochs=2, vectorise=how)(problem(Branching), identity, Seeds(3))  # type: ignore[arg-type]
        for how in ("always", "never")
    )
    assert all(torch.equal(value, weights(two, 1).tensors[name]) for name, value in weights(one, 1).tensors.items())


@pytest.mark.parametrize("vectorise", ["always", "never"])
def test_dropout_repeats_from_the_seed_and_leaves_the_global_generator_alone(vectorise: str) -> None:
    def dropping() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.Dropout(0.5), nn.Linear(32, 2))

    protocol = FedAvg(epochs=2, vectorise=vectorise)  # type: ignore[arg-type]
    state = torch.get_rng_state()
    one, two = (protocol(problem(dropping), identity, Seeds(4)) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(v, weights(two, 2).tensors[n]) for n, v in weights(one, 2).tensors.items())
    # Evaluation is without dropout: the same model gives the same answers.
    assert one.truth.utility == two.truth.utility


class Faulty(nn.Module):
    """Fails while it trains, and only then: nobody finds out before."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(1)
        return nn.functional.linear(flat[:, 1:] if self.training else flat, self.linear.weight)


def test_a_module_with_a_fault_shows_its_own_error() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        FedSGD(vectorise="always")(problem(Faulty), identity, Seeds(0))
