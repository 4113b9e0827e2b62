"""Attacks that take logarithms of probabilities, and defenses that leave numbers with another sum."""

from __future__ import annotations

from typing import Any

import pytest

from fedleak.audit.spec import make_spec
from fedleak.errors import SpecError

FACES: dict[str, Any] = {
    "data": {"name": "orl", "clients": 2, "size": 16, "public": {"targets": 20, "drop_twins": True, "labels": False}},
    "model": {"name": "mlp"},
    "protocol": {"name": "dsfl", "preset": "released"},
    "attacks": [{"name": "tbi"}, {"name": "msa"}],
}
NOISE = {"name": "gaussian", "variance": 0.01}


@pytest.mark.parametrize(
    "arm",
    [
        [NOISE],
        [{"name": "laplace", "scale": 0.1}],
        [{"name": "round", "decimals": 1}],
        [{"name": "directed", "gamma": 0.01}],
        [{"name": "clip", "norm": 1.0}],
        [{"name": "label_only"}, NOISE],
    ],
)
def test_what_would_refuse_every_row_of_an_arm_is_said_before_anything_runs(arm: list[dict[str, Any]]) -> None:
    given = {**FACES, "defenses": [{"name": "none"}, arm]}
    with pytest.raises(SpecError) as caught:
        make_spec(given)
    (problem,) = caught.value.problems
    assert problem.path == "attacks"
    assert "'tbi' reads probabilities" in problem.message
    assert "renormalise = true" in problem.message
    assert make_spec({**given, "attacks": [{"name": "tbi", "renormalise": True}]}).points
    assert make_spec({**given, "protocol": {"name": "dsfl"}}).points  # logits may be any numbers


@pytest.mark.parametrize(
    "arm",
    [
        [{"name": "label_only"}],
        [{"name": "top_k", "k": 3}],
        [{"name": "temperature", "t": 3.0}],
        [{"name": "one_shot"}],
        [NOISE, {"name": "label_only"}],
        [NOISE, {"name": "top_k", "k": 3}],
    ],
)
def test_probabilities_that_stay_some_are_no_problem(arm: list[dict[str, Any]]) -> None:
    assert make_spec({**FACES, "defenses": [arm]}).points
