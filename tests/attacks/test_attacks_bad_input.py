"""Every attack on transcripts that are wrong: a reason for each victim that cannot be used, and the others go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedleak.attacks import ATTACKS
from fedleak.attacks.inversion.settings import InversionSettings
from fedleak.types import Gradients, ModelSpec, Reconstruction, Transcript, Weights

INVERSIONS = {name: cls for name, cls in ATTACKS.items() if issubclass(cls, InversionSettings)}
"""What runs on the inversion engine; the other attacks have files of their own."""
TOLD = {"lr": 0.1, "epochs": 1, "batch_size": None}
QUICK: dict[str, dict[str, Any]] = {
    name: {"steps": 2, "restarts": 0} if name == "class_inversion" else {"steps": 1, "inner": 3, "candidates": 2}
    for name in INVERSIONS
}


def attacked(name: str, seen: Transcript) -> Reconstruction:
    return ATTACKS[name](**QUICK[name])(seen, rng=torch.Generator().manual_seed(0))


def with_payload(seen: Transcript, at: int, payload: Gradients | Weights) -> Transcript:
    (round_,) = seen.rounds
    messages = list(round_.received)
    messages[at] = replace(messages[at], payload=payload)
    return replace(seen, rounds=(replace(round_, received=tuple(messages)),))


SPOIL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "nothing new": lambda sent, broadcast: broadcast.clone(),
    "not finite": lambda sent, broadcast: torch.full_like(sent, float("nan")),
    "expected": lambda sent, broadcast: sent[..., :1],
}


@pytest.mark.parametrize("why", SPOIL)
@pytest.mark.parametrize("name", INVERSIONS)
def test_one_bad_update_is_refused_and_the_others_go_on(name: str, why: str, scene: Callable) -> None:
    seen = scene((1, 1, 1), sends="weights", disclosed=TOLD).transcript
    (round_,) = seen.rounds
    sent, broadcast = round_.received[1].payload.tensors, round_.broadcast.tensors
    bad = Weights({key: SPOIL[why](value, broadcast[key]) for key, value in sent.items()})
    found = attacked(name, with_payload(seen, 1, bad))
    assert [v.status for v in found.victims] == ["ok", "refused", "ok"]
    assert why in found.victims[1].reason
    assert "client-1" in found.victims[1].reason


@pytest.mark.parametrize("name", INVERSIONS)
def test_without_broadcast_weights_everybody_is_refused(name: str, scene: Callable) -> None:
    seen = scene((1, 1), disclosed=TOLD).transcript
    found = attacked(name, replace(seen, rounds=(replace(seen.rounds[0], broadcast=None),)))
    assert [v.status for v in found.victims] == ["refused"] * 2
    assert all("no broadcast weights" in v.reason for v in found.victims)


@pytest.mark.parametrize("name", INVERSIONS)
def test_broadcast_weights_that_are_not_finite_refuse_everybody(name: str, scene: Callable) -> None:
    seen = scene((1,), disclosed=TOLD).transcript
    (round_,) = seen.rounds
    broken = {key: value * float("inf") for key, value in round_.broadcast.tensors.items()}
    found = attacked(name, replace(seen, rounds=(replace(round_, broadcast=Weights(broken)),)))
    assert found.victims[0].status == "refused"
    assert "broadcast" in found.victims[0].reason


class OnceOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        ctx.save_for_backward(inputs)
        return inputs.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (inputs,) = ctx.saved_tensors
        return 2 * inputs * slope


class Hard(nn.Module):
    """Its backward pass cannot be differentiated again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(64, 5), nn.Linear(5, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(OnceOnly.apply(self.first(inputs.flatten(1))))


@pytest.mark.parametrize("name", INVERSIONS)
def test_a_module_that_is_not_twice_differentiable_is_refused_with_the_reason(name: str, scene: Callable) -> None:
    spec = ModelSpec("mine", factory=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 4)))
    seen = scene((1,), model=spec, disclosed=TOLD).transcript
    (round_,) = seen.rounds
    names = ("first.weight", "first.bias", "head.weight", "head.bias")
    renamed = dict(zip(names, round_.broadcast.tensors, strict=True))

    def rename(tensors: Any) -> dict[str, Tensor]:
        return {new: tensors[old] for new, old in renamed.items()}

    message = replace(round_.received[0], payload=Gradients(rename(round_.received[0].payload.tensors)))
    changed = replace(round_, broadcast=Weights(rename(round_.broadcast.tensors)), received=(message,))
    hard = replace(seen, rounds=(changed,)).with_model(Hard)
    (victim,) = attacked(name, hard).victims
    assert victim.status == "refused"
    assert "twice differentiable" in victim.reason


class Shy(nn.Module):
    """Takes one picture at a time, and says so."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        if len(inputs) > 1:
            raise ValueError("one at a time")
        return self.head(inputs.flatten(1)).tanh()


def test_a_module_that_a_label_rule_cannot_ask_is_refused_with_the_reason(scene: Callable) -> None:
    seen = scene((1,), model=ModelSpec("mine", factory=Shy), disclosed=TOLD).transcript
    (victim,) = attacked("idlg", seen).victims
    assert victim.status == "refused"
    assert "ValueError: one at a time" in victim.reason
    assert attacked("dlg", seen).victims[0].status == "ok"
