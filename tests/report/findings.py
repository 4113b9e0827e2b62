"""Rows of each kind of finding with the numbers that a test is about. `make_row` is the fixture of that name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedleak.audit.rows import Row

Make = Callable[..., Row]


def people(make_row: Make, hits: int, total: int = 20, prior: int = 2, **where: Any) -> Row:
    """One federation: so many of the people recognised, so many by the prior alone."""
    shares = [float(at < hits) for at in range(total)]
    blind = {"attack_accuracy": [float(at < prior) for at in range(total)], "ssim": [0.3] * total}
    settings = {"protocol": "fedmd", "attack": "pli", "client": "federation", **where}
    return make_row(settings, {"attack_accuracy": shares, "ssim": [0.5] * total}, baselines={"prior": blind})


def copy(make_row: Make, right: int, victim: int, chance: int = 10, total: int = 100, **where: Any) -> Row:
    """One client's model: so many of the test images right by the copy, by the victim, by the commonest class."""

    def first(count: int) -> list[float]:
        return [float(at < count) for at in range(total)]

    scores = {"attack_accuracy": first(right), "victim_accuracy": first(victim), "fidelity": first(80)}
    guess = {"attack_accuracy": first(chance), "victim_accuracy": first(victim), "fidelity": first(12)}
    settings = {"protocol": "fedmd", "attack": "msa", "client": "client-0", **where}
    return make_row(settings, scores, baselines={"commonest": guess})


def counts(make_row: Make, wrong: int, total: int = 50, guessed: int = 40, **where: Any) -> Row:
    errors = [float(at < wrong) for at in range(total)]
    guess = {"label_errors": [float(at < guessed) for at in range(total)]}
    settings = {"attack": "label_counts", "client": "client-0", **where}
    return make_row(settings, {"label_errors": errors}, baselines={"evenly": guess})
