"""Networks of somebody's own: what makes one, and what is told to those who hand in something else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import fedleak
from fedleak.audit.registry import load_code
from fedleak.audit.spec import make_spec
from fedleak.errors import RefusedError, SpecError
from fedleak.models import build_model
from fedleak.types import Examples, ModelSpec, made_by

NET = nn.Linear(3, 2)


def chosen(width: int = 2) -> nn.Module:
    return nn.Linear(3, width)


@pytest.mark.parametrize("factory", [chosen, partial(nn.Linear, 3, 2), lambda: NET])
def test_whatever_makes_a_module_without_arguments_will_do(factory: Callable[[], nn.Module]) -> None:
    assert tuple(made_by(factory).weight.shape) == (2, 3)  # type: ignore[union-attr]


WRONG: list[tuple[Any, str]] = [
    (nn.Linear, r"model='Linear': is called without arguments .*'in_features'.*lambda: Net\(10\)"),
    (NET, "model='Linear': .* not the network itself"),
    (lambda: 3, "makes a int, not a torch.nn.Module; return the network"),
]


@pytest.mark.parametrize(("factory", "said"), WRONG)
def test_anything_else_is_refused_with_the_way_out(factory: Any, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        build_model(ModelSpec("my_app:Net", factory=factory), (1, 8, 8), 4)
    shown = Examples(torch.rand(4, 1, 8, 8), torch.arange(4))
    with pytest.raises(RefusedError, match=said):
        fedleak.simulate({"a": shown}, shown, model=factory)
    recording = fedleak.simulate({"a": shown}, shown, model="mlp", rounds=1)
    with pytest.raises(RefusedError, match=said):
        fedleak.attack(recording.transcript, "dlm_plus", model=factory, steps=1)


def test_a_name_of_something_that_wants_arguments_is_refused_by_check() -> None:
    with pytest.raises(RefusedError, match=r"model='torch\.nn:Linear': is called without arguments"):
        load_code("torch.nn:Linear", allow=True)
    tables = {"data": {"name": "orl"}, "model": {"name": "torch.nn:Linear"}, "protocol": {"name": "fedavg"}}
    with pytest.raises(SpecError) as caught:
        make_spec(tables, allow_code=True)
    assert "model.name" in {problem.path for problem in caught.value.problems}


def test_what_goes_wrong_inside_is_left_for_its_author_to_see() -> None:
    def broken() -> nn.Module:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        made_by(broken)
