"""DP-SGD: fedleak's own defense, Opacus' training and two accountants hold each other to account."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedleak
from fedleak.defenses import DPSGD
from fedleak.defenses.accounting import gaussian_epsilon
from fedleak.errors import RefusedError
from fedleak.integrations.opacus import epsilon_spent, noise_for, train_private
from fedleak.types import Examples, Weights

opacus = pytest.importorskip("opacus", reason="opacus is not installed: pip install 'fedleak[opacus]'")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 3))


def private(count: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(4)
    return torch.rand(count, 1, 4, 4, generator=rng), torch.arange(count) % 3


def test_opacus_takes_the_same_step_as_the_defense() -> None:
    """Without noise and with all examples in every step, both are plain arithmetic."""
    inputs, labels = private()
    run = train_private(
        net(), inputs, labels, epochs=3, batch_size=6, lr=0.5, noise_multiplier=0.0, max_grad_norm=0.1, seed=0
    )
    seen = fedleak.simulate(
        {"a": Examples(inputs, labels)},
        Examples(inputs, labels),
        model=net,
        protocol="fedavg",
        epochs=3,
        lr=0.5,
        defenses=(DPSGD(noise_multiplier=0.0, max_grad_norm=0.1),),
        device="cpu",
    ).transcript
    broadcast, sent = seen.round(1).broadcast, seen.round(1).received[0].payload
    assert isinstance(broadcast, Weights)
    assert isinstance(sent, Weights)
    module = net()
    module.load_state_dict(dict(broadcast.tensors))
    run = train_private(
        module, inputs, labels, epochs=3, batch_size=6, lr=0.5, noise_multiplier=0.0, max_grad_norm=0.1, seed=0
    )
    assert run.history == ((0.0, 1.0, 3),)
    for name, value in sent.tensors.items():
        assert torch.allclose(run.weights[name], value, atol=1e-6), name


def test_a_seed_repeats_private_training_and_none_does_not() -> None:
    given: dict[str, Any] = {"epochs": 2, "batch_size": 2, "lr": 0.1, "noise_multiplier": 1.0, "max_grad_norm": 1.0}
    one, same, other, free = (train_private(net(), *private(), seed=s, **given) for s in (1, 1, 2, None))
    assert torch.equal(one.weights["1.weight"], same.weights["1.weight"])
    assert not torch.equal(one.weights["1.weight"], other.weights["1.weight"])
    assert not torch.equal(one.weights["1.weight"], free.weights["1.weight"])
    assert set(one.weights) == set(net().state_dict())


def test_no_noise_is_no_privacy_and_no_step_costs_nothing() -> None:
    assert epsilon_spent(()) == 0.0
    assert epsilon_spent(((0.0, 0.1, 5),)) == math.inf


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.0, 0.01, 1000), (0.8, 0.05, 200), (2.0, 0.25, 60)])
def test_opacus_and_dp_accounting_agree(noise: float, rate: float, steps: int) -> None:
    dp = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed: pip install 'fedleak[dp]'")
    accountant = dp.pld.PLDAccountant()
    accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), steps)
    theirs = accountant.get_epsilon(1e-5)
    assert epsilon_spent(((noise, rate, steps),), 1e-5) == pytest.approx(theirs, rel=0.03)
    # Rounds add up in the ledger: ten entries are one of ten times the steps.
    parts = ((noise, rate, steps // 10),) * 10
    assert epsilon_spent(parts, 1e-5) == pytest.approx(epsilon_spent(((noise, rate, steps // 10 * 10),), 1e-5))


def test_the_noise_for_an_epsilon_spends_no_more_than_it() -> None:
    noise = noise_for(2.0, sample_rate=0.1, steps=100)
    assert 1.9 < epsilon_spent(((noise, 0.1, 100),)) <= 2.0 + 1e-6


def test_an_enormous_epsilon_is_bounded_and_not_computed_forever() -> None:
    exact = gaussian_epsilon(0.2, 1.0, 1e-5, 15)
    assert exact < epsilon_spent(((0.2, 1.0, 15),)) < 1.2 * exact
    noise = noise_for(200.0, sample_rate=1.0, steps=15)
    assert 150.0 < epsilon_spent(((noise, 1.0, 15),)) <= 200.0


def test_batchnorm_is_refused_with_a_way_out() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    with pytest.raises(RefusedError, match="GroupNorm"):
        train_private(
            module, *private(), epochs=1, batch_size=2, lr=0.1, noise_multiplier=1.0, max_grad_norm=1.0, seed=0
        )


def test_an_undrawn_batch_is_a_step_of_noise_alone() -> None:
    """A sampling rate of 1/40 over 40 examples draws nobody in about a third of the steps."""
    inputs, labels = private(40)
    run = train_private(
        net(), inputs, labels, epochs=1, batch_size=1, lr=0.1, noise_multiplier=1.0, max_grad_norm=1.0, seed=3
    )
    assert run.history == ((1.0, 1 / 40, 40),)
    assert torch.isfinite(F.cross_entropy(_loaded(run.weights)(inputs), labels))


def _loaded(weights: dict[str, torch.Tensor]) -> nn.Module:
    module = net()
    module.load_state_dict(weights)
    return module
