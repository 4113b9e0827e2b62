"""What a report says that a defense proves, over all of its seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedleak.audit.rows import Row
from fedleak.report.arms import arms_of
from fedleak.report.tables import summary

Make = Callable[..., Row]
STRONG = {"kind": "dp", "epsilon": 2.0, "delta": 1e-5, "statement": "(2, 1e-05)-DP"}
WEAK = {"kind": "dp", "epsilon": 3.0, "delta": 1e-5, "statement": "(3, 1e-05)-DP"}
NOTHING = {"kind": "none", "epsilon": None, "delta": None, "statement": "none: no bound"}


@pytest.mark.parametrize(
    ("by_seed", "stated"),
    [([STRONG, WEAK], WEAK), ([WEAK, STRONG], WEAK), ([STRONG, NOTHING], NOTHING), ([STRONG, {}], STRONG)],
)
def test_an_arm_states_the_least_that_its_seeds_prove(
    by_seed: list[dict[str, Any]], stated: dict[str, Any], make_row: Make
) -> None:
    """With more public images a message says more: one seed's epsilon is not that of another."""
    rows = [make_row({"client": "a", "seed": seed, "defense": "x"}, {"recovered": [0.0]}) for seed in (0, 1)]
    rows += [make_row({"attack": "none", "seed": seed, "defense": "x"}, {"utility": [1.0]}) for seed in (0, 1)]
    (arm,) = arms_of(summary(rows), rows, lambda row: {"guarantee": by_seed[row.where["seed"]]})
    assert arm.guarantee == stated["statement"]
