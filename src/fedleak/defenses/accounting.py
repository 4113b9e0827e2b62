"""What noise proves: (epsilon, delta) of Gaussian and Laplace noise over many rounds."""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr

from fedleak.errors import RefusedError

__all__ = ["gaussian_delta", "gaussian_epsilon", "laplace_epsilon", "upward", "worth"]

NO_NOISE = 1e100
"""A sensitivity of so many standard deviations: their ratio, squared, would leave the range of floating point."""


def gaussian_delta(epsilon: float, sigma: float, sensitivity: float, rounds: int = 1) -> float:
    """The smallest delta of Gaussian noise at this epsilon: Balle and Wang 2018, theorem 8 (exact, any epsilon).

    T adaptive rounds equal one release with sensitivity times sqrt(T): Dong, Roth and Su 2019, corollary 3.3.
    """
    shift = sensitivity * math.sqrt(rounds) / sigma
    if shift == 0:
        return 0.0
    # Phi(s/2 - e/s) - exp(e) Phi(-s/2 - e/s), with logarithms: exp(e) overflows for the large epsilons of weak noise.
    upper = float(log_ndtr(shift / 2 - epsilon / shift))
    lower = epsilon + float(log_ndtr(-shift / 2 - epsilon / shift))
    return math.exp(upper) * -math.expm1(min(lower - upper, 0.0))


def gaussian_epsilon(sigma: float, sensitivity: float, delta: float, rounds: int = 1) -> float:
    """The smallest epsilon at which `rounds` releases with Gaussian noise are (epsilon, delta)-private."""
    if not 0 < delta < 1:
        raise RefusedError(f"delta={delta:g}: must lie between 0 and 1; at 0 Gaussian noise is private for no epsilon")
    if sensitivity * math.sqrt(rounds) > NO_NOISE * sigma:
        return math.inf
    if gaussian_delta(0.0, sigma, sensitivity, rounds) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(high, sigma, sensitivity, rounds) > delta:
        high *= 2.0
    return float(brentq(lambda e: gaussian_delta(e, sigma, sensitivity, rounds) - delta, 0.0, high, xtol=1e-12))


def laplace_epsilon(scale: float, l1_sensitivity: float, rounds: int = 1) -> float:
    """The epsilon (with delta 0) of `rounds` releases with Laplace noise: basic composition."""
    return rounds * l1_sensitivity / scale


def upward(epsilon: float) -> str:
    """An epsilon in three digits, never smaller than it is: a bound rounded down is no bound.

    >>> upward(4.3702), upward(0.5), upward(0.0)
    ('4.38', '0.5', '0')
    """
    if epsilon == 0 or not math.isfinite(epsilon):
        return f"{epsilon:.3g}"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    shown = f"{epsilon:.3g}"
    return shown if float(shown) >= epsilon else f"{epsilon + unit / 2:.3g}"


MEANINGLESS = 20.0
"""Above this an attacker may be half a billion times (e^20) surer of one data set than of its neighbour."""


def worth(epsilon: float) -> str:
    """What to add to a statement whose epsilon is true and says nothing.

    >>> worth(3.0), worth(3000.0)
    ('', '; so large an epsilon promises nothing in practice')
    """
    return "" if epsilon <= MEANINGLESS else "; so large an epsilon promises nothing in practice"
