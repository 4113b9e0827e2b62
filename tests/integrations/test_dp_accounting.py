"""What the defenses claim, against the accountant of somebody else."""

from __future__ import annotations

import math

import pytest

from fedleak.defenses import Gaussian, Plan
from fedleak.defenses.accounting import gaussian_epsilon

dp = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed: pip install 'fedleak[dp]'")
pld = pytest.importorskip("dp_accounting.pld", reason="dp-accounting is not installed: pip install 'fedleak[dp]'")


@pytest.mark.parametrize("delta", [1e-3, 1e-9])
@pytest.mark.parametrize("rounds", [1, 30])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 5.0, 100.0])
def test_gaussian_epsilons(sigma: float, rounds: int, delta: float) -> None:
    theirs = dp.get_epsilon_gaussian(sigma / math.sqrt(rounds), delta)
    assert gaussian_epsilon(sigma, 1.0, delta, rounds) == pytest.approx(theirs, rel=1e-6, abs=1e-9)


def test_the_defense_proves_what_dp_accounting_computes() -> None:
    """Without sampling, T uses of an example are T Gaussian releases; replacing one doubles the sensitivity."""
    for uses, sensitivity in ((1, 1.0), (15, 1.0), (15, 2.0)):
        accountant = pld.PLDAccountant()
        accountant.compose(dp.GaussianDpEvent(4.0 / sensitivity), uses)
        assert gaussian_epsilon(4.0, sensitivity, 1e-5, uses) == pytest.approx(accountant.get_epsilon(1e-5), rel=0.01)


def test_noisy_predictions_prove_what_dp_accounting_composes_over_rounds() -> None:
    known = Plan(rounds=4, predictions="probabilities", examples=2, dimension=6)
    accountant = pld.PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp.GaussianDpEvent(6.0 / 2.0), 4)  # sensitivity sqrt(2 x 2) = 2
    assert Gaussian(sigma=6.0).guarantee(known).epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=0.02)
