"""On a GPU torch rounds the factors of a convolution to TF32 unless it is told not to; an inversion tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from fedleak.attacks.inversion.dlg import DLG
from fedleak.attacks.inversion.objective import GradientMatch
from fedleak.defenses import chain
from fedleak.federation import Problem, fedsgd
from fedleak.learning.precision import products_in
from fedleak.seeding import Seeds
from fedleak.types import Examples, ModelSpec

Flags = tuple[bool, bool]


def rounded() -> Flags:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.fixture(autouse=True)
def torch_as_it_comes() -> Iterator[None]:
    """Convolutions in TF32, other products not: torch's own defaults, whatever an earlier test left."""
    before = rounded()
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def spied(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> set[Flags]:
    """The precisions under which a function was called."""
    seen: set[Flags] = set()
    plain = getattr(owner, name)

    def noted(*given: Any, **named: Any) -> Any:
        seen.add(rounded())
        return plain(*given, **named)

    monkeypatch.setattr(owner, name, noted)
    return seen


def test_the_precision_holds_inside_and_is_put_back_even_after_an_error() -> None:
    with products_in("tf32"):
        assert rounded() == (True, True)
    with products_in("float32"):
        assert rounded() == (False, False)
    with pytest.raises(ZeroDivisionError), products_in("float32"):
        raise ZeroDivisionError
    assert rounded() == (False, True)


def test_an_inversion_searches_in_float32(scene: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spied(monkeypatch, GradientMatch, "_pull")
    DLG(steps=1, restarts=0, candidates=1)(scene().transcript, rng=torch.Generator().manual_seed(0))
    assert seen == {(False, False)}
    assert rounded() == (False, True)


def test_a_client_works_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spied(monkeypatch, fedsgd, "batch_gradient")
    held = Examples(torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([1]))
    problem = Problem({"a": held, "b": held}, held, ModelSpec("mlp"), (1, 8, 8), 4)
    fedsgd.FedSGD(rounds=1)(problem, chain(), Seeds(0))
    assert seen == {(False, False)}
    assert rounded() == (False, True)
