"""(epsilon, delta) of noise against closed forms, published values and numerical integration of the definition."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from fedleak.defenses import Clip, Gaussian, Plan, chain
from fedleak.defenses.accounting import gaussian_delta, gaussian_epsilon, laplace_epsilon, upward
from fedleak.errors import RefusedError


def divergence(epsilon: float, sigma: float, sensitivity: float) -> float:
    """delta from its definition: the integral of max(0, p - e^epsilon q) over two Gaussians `sensitivity` apart."""
    # p > e^epsilon q from this point on, where the densities are N(sensitivity, sigma) and N(0, sigma).
    start = sensitivity / 2 + epsilon * sigma**2 / sensitivity
    value, _ = quad(
        lambda x: norm.pdf(x, sensitivity, sigma) - math.exp(epsilon) * norm.pdf(x, 0, sigma),
        start,
        start + 30 * sigma,
        epsabs=1e-14,
        limit=200,
    )
    return float(value)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
def test_delta_is_the_divergence_of_the_definition(epsilon: float, sigma: float) -> None:
    assert gaussian_delta(epsilon, sigma, 1.0) == pytest.approx(divergence(epsilon, sigma, 1.0), rel=1e-6, abs=1e-12)


def test_known_value_of_one_gdp() -> None:
    # Dong, Roth, Su 2019, corollary 2.13 at mu = 1: Phi(-1/2) - e Phi(-3/2)
    assert gaussian_delta(1.0, 1.0, 1.0) == pytest.approx(norm.cdf(-0.5) - math.e * norm.cdf(-1.5))


def test_epsilon_zero_is_the_total_variation() -> None:
    assert gaussian_delta(0.0, 2.0, 1.0) == pytest.approx(2 * norm.cdf(0.25) - 1)


@given(
    sigma=st.floats(0.05, 50), sensitivity=st.floats(0.01, 10), delta=st.floats(1e-9, 0.1), rounds=st.integers(1, 500)
)
def test_epsilon_inverts_delta(sigma: float, sensitivity: float, delta: float, rounds: int) -> None:
    epsilon = gaussian_epsilon(sigma, sensitivity, delta, rounds)
    reached = gaussian_delta(epsilon, sigma, sensitivity, rounds)
    assert reached == pytest.approx(delta, rel=1e-4) or (epsilon == 0.0 and reached <= delta)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 0.99])
def test_never_worse_than_the_classical_bound_where_that_holds(epsilon: float) -> None:
    # Dwork and Roth 2014, theorem A.1: valid for epsilon < 1 only
    delta, sensitivity = 1e-5, 2.0
    sigma = math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon
    assert gaussian_epsilon(sigma, sensitivity, delta) < epsilon


def test_rounds_compose_as_one_release_of_a_longer_vector() -> None:
    # T releases of one number each are one release of T numbers whose L2 sensitivity is sqrt(T) times as large.
    assert gaussian_epsilon(3.0, 1.0, 1e-5, 16) == pytest.approx(gaussian_epsilon(3.0, 4.0, 1e-5))
    assert gaussian_epsilon(3.0, 1.0, 1e-5, 16) < 16 * gaussian_epsilon(3.0, 1.0, 1e-5 / 16)


def test_weak_noise_gives_a_huge_finite_epsilon() -> None:
    # For shift s the epsilon is s^2 / 2 + s z, z the (1 - delta) quantile, up to lower orders.
    shift = 1e4
    expected = shift**2 / 2 + shift * norm.isf(1e-5)
    assert gaussian_epsilon(1.0, shift, 1e-5) == pytest.approx(expected, rel=1e-3)


def test_laplace_by_hand_and_from_its_densities() -> None:
    assert laplace_epsilon(0.5, 2.0, 3) == 12.0
    # The log ratio of two Laplace densities 2 apart is at most 2 / scale.
    worst = max(abs(x - 2.0) / 0.5 - abs(x) / 0.5 for x in (-5.0, 0.0, 1.0, 5.0))
    assert laplace_epsilon(0.5, 2.0) == pytest.approx(worst)


@pytest.mark.parametrize("delta", [0.0, -1e-5, 1.0, 2.0, math.nan])
def test_gaussian_noise_has_no_epsilon_at_such_a_delta(delta: float) -> None:
    """At delta 0 the two densities' ratio is unbounded: no epsilon holds, however large."""
    with pytest.raises(RefusedError, match="delta="):
        gaussian_epsilon(1.0, 1.0, delta)
    with pytest.raises(RefusedError, match="delta="):
        chain(Clip(norm=1.0), Gaussian(sigma=1.0)).guarantee(Plan(delta=delta))


def test_next_to_no_noise_has_no_finite_epsilon() -> None:
    assert gaussian_epsilon(1e-160, 1.0, 1e-5) == math.inf
    assert math.isfinite(gaussian_epsilon(1e-30, 1.0, 1e-5))


@given(st.floats(1e-6, 1e30))
def test_a_printed_epsilon_is_never_smaller_than_it_is(epsilon: float) -> None:
    shown = float(upward(epsilon))
    assert epsilon <= shown <= epsilon * 1.0101
