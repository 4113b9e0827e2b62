"""Recordings of networks as people write them: what is done so that an attack can read them, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedleak
from fedleak.errors import RefusedError
from fedleak.integrations.confidence import confidence, noise_instead
from fedleak.integrations.own_models import attackable, prepare, summed
from fedleak.types import (
    Examples,
    Gradients,
    Message,
    ModelSpec,
    Reconstruction,
    Round,
    Setup,
    Transcript,
    Truth,
    Weights,
)

PICTURES = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(3))


class Residual(nn.Module):
    """A small ResNet: BatchNorm, a skip connection, functional dropout, and a frozen first layer where asked."""

    def __init__(self, frozen: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.conv1, self.norm1 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.norm2 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.head = nn.Linear(6 * 64, 4)
        self.stem.requires_grad_(not frozen)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        x = torch.tanh(x + self.norm2(self.conv2(torch.tanh(self.norm1(self.conv1(x))))))
        return self.head(F.dropout(x.flatten(1), 0.05, self.training))


def recorded(
    make: Any, *, running: bool = False, dropout: bool = False, kind: torch.dtype = torch.float32
) -> Transcript:
    """Two clients, one picture each, one step; recorded as a state_dict in `kind`."""
    torch.manual_seed(0)
    state = make().state_dict()
    trained = {name for name, _ in make().named_parameters()}

    def weights(values: dict[str, Tensor]) -> Weights:
        cast = {n: v.detach().to(kind) if v.is_floating_point() else v.clone() for n, v in values.items()}
        # Not in the order of the module: names count, not places.
        backwards = dict(reversed(list(cast.items())))
        return Weights(
            {n: v for n, v in backwards.items() if n in trained},
            {n: v for n, v in backwards.items() if n not in trained},
        )

    messages = []
    for number in range(2):
        module = make() if dropout else attackable(make, batchnorm="running" if running else "batch")()
        module.load_state_dict(state)
        F.cross_entropy(module(PICTURES[number : number + 1]), torch.tensor([number])).backward()
        torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1).step()
        messages.append(Message(f"c{number}", weights(module.state_dict()), {"samples": 1}))
    setup = Setup(ModelSpec("mine:Residual"), (1, 8, 8), 4)
    return Transcript(setup, (Round(1, weights(state), tuple(messages)),))


def attack(seen: Transcript, seed: int = 0, **more: Any) -> Reconstruction:
    return fedleak.attack(seen, "dlm_plus", seed=seed, device="cpu", **{"steps": 30, "restarts": 1, **more})


def decibels(finding: Reconstruction) -> list[float]:
    examples = Examples(PICTURES, torch.tensor([0, 1]))
    used = {(1, f"c{n}"): torch.tensor([n]) for n in range(2)}
    judged = fedleak.judge(finding, Truth(examples, ("c0", "c1"), used, examples))
    return [judged[f"c{n}"].scores["psnr"][0] for n in range(2)]


def frozen() -> nn.Module:
    return Residual(frozen=True)


def test_a_small_resnet_in_training_mode() -> None:
    assert min(decibels(attack(prepare(recorded(Residual), Residual)))) > 40


def test_batchnorm_in_evaluation_mode() -> None:
    seen = recorded(Residual, running=True)
    assert min(decibels(attack(prepare(seen, Residual, batchnorm="running")))) > 40
    assert max(decibels(attack(prepare(seen, Residual, batchnorm="batch")))) < 20, "the wrong mode explains nothing"


def test_frozen_layers_are_no_part_of_the_update() -> None:
    seen = prepare(recorded(frozen), frozen)
    broadcast = seen.round(1).broadcast
    assert isinstance(broadcast, Weights)
    assert not [name for name in broadcast.tensors if name.startswith("stem")]
    assert {"stem.weight", "stem.bias"} <= set(broadcast.buffers)
    assert min(decibels(attack(seen))) > 30


def test_dropout_of_the_client_is_noise_to_the_attack_and_the_attack_itself_has_none() -> None:
    seen = prepare(recorded(Residual, dropout=True), Residual)
    one, same = attack(seen, steps=3), attack(seen, steps=3)
    assert torch.equal(one.victims[0].inputs, same.victims[0].inputs)
    module = seen.setup.model.factory()  # type: ignore[misc]
    assert torch.equal(module(PICTURES), module(PICTURES)), "functional dropout is off too"


@pytest.mark.parametrize("kind", [torch.float16, torch.float64])
def test_other_precisions_are_computed_in_float32(kind: torch.dtype) -> None:
    seen = prepare(recorded(Residual, kind=kind), Residual)
    assert {v.dtype for v in seen.round(1).broadcast.tensors.values()} == {torch.float32}  # type: ignore[union-attr]
    assert min(decibels(attack(seen))) > (15 if kind == torch.float16 else 40)


def test_another_network_is_refused_at_once_with_the_names() -> None:
    with pytest.raises(RefusedError, match=r"missing: weight, bias; not expected: head\.bias"):
        prepare(recorded(Residual), lambda: nn.Linear(64, 4))

    class Wider(Residual):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6 * 64, 5)

    with pytest.raises(RefusedError, match=r"head\.weight was recorded as \(4, 384\)"):
        prepare(recorded(Residual), Wider)


def test_a_message_that_does_not_fit_is_refused_and_the_others_are_read() -> None:
    seen = recorded(Residual)
    first = seen.round(1).received[0]
    assert isinstance(first.payload, Weights)
    renamed = Weights({f"x.{n}": v for n, v in first.payload.tensors.items()}, first.payload.buffers)
    rounds = (replace(seen.round(1), received=(replace(first, payload=renamed), seen.round(1).received[1])),)
    finding = attack(prepare(Transcript(seen.setup, rounds), Residual), steps=3)
    assert [victim.status for victim in finding.victims] == ["refused", "ok"]
    assert "x." in finding.victims[0].reason


def test_a_network_without_anything_trained_is_refused() -> None:
    def nothing() -> nn.Module:
        return Residual().requires_grad_(False)

    with pytest.raises(RefusedError, match="every parameter is frozen"):
        prepare(recorded(Residual), nothing)


def test_gradients_are_put_in_order_and_those_of_frozen_layers_let_go() -> None:
    seen = recorded(frozen)
    names = [name for name, _ in frozen().named_parameters()]
    sent = Gradients({name: torch.ones(frozen().get_parameter(name).shape).half() for name in reversed(names)})
    rounds = (replace(seen.round(1), received=(Message("g", sent, {"samples": 1}),)),)
    (message,) = prepare(Transcript(seen.setup, rounds), frozen).round(1).received
    assert isinstance(message.payload, Gradients)
    assert list(message.payload.tensors) == [name for name in names if not name.startswith("stem")]
    assert {value.dtype for value in message.payload.tensors.values()} == {torch.float32}


def test_buffers_that_no_state_dict_holds_may_be_there_or_not() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)
            self.register_buffer("scale", torch.ones(1), persistent=False)

    state = dict(Scaled().state_dict())
    for more in ({}, {"scale": torch.full((1,), 3.0)}):
        start = Weights(state, more)
        seen = Transcript(Setup(ModelSpec("m"), (1, 2, 2), 2), (Round(1, start, (Message("a", start),)),))
        broadcast = prepare(seen, Scaled).round(1).broadcast
        assert isinstance(broadcast, Weights)
        assert set(broadcast.buffers) == set(more)


def test_secure_aggregation_shows_one_weighted_mean() -> None:
    """By hand: (3 x 1 + 1 x 5) / 4 = 2."""
    start = Weights({"w": torch.zeros(2)})
    messages = (
        Message("a", Weights({"w": torch.tensor([1.0, 0.0])}), {"samples": 3, "lr": 0.1}),
        Message("b", Weights({"w": torch.tensor([5.0, 4.0])}), {"samples": 1, "lr": 0.1}),
    )
    seen = summed(Transcript(Setup(ModelSpec("m"), (1, 1, 2), 2), (Round(1, start, messages),))).round(1)
    (only,) = seen.received
    assert only.sender == "sum of 2 clients"
    assert only.disclosed == {"samples": 4, "lr": 0.1}
    assert torch.equal(only.payload.tensors["w"], torch.tensor([2.0, 1.0]))  # type: ignore[union-attr]


def test_an_attack_reads_the_sum_of_two_clients() -> None:
    """One picture each: the sum is one update of a batch of two (here without BatchNorm, so exactly)."""

    def plain() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(512, 4))

    finding = attack(summed(prepare(recorded(plain), plain)), steps=60)
    (victim,) = finding.victims
    assert victim.inputs.shape == (2, 1, 8, 8)
    examples = Examples(PICTURES, torch.tensor([0, 1]))
    truth = Truth(examples, ("c0", "c1"), {(1, victim.sender): torch.arange(2)}, examples)
    assert max(fedleak.judge(finding, truth)[victim.sender].scores["psnr"]) > 30


# --- without the truth --------------------------------------------------------------------------------------------


def test_a_leak_is_believed_and_noise_is_not() -> None:
    seen = prepare(recorded(Residual), Residual)
    found = confidence(seen, attack, seeds=(0, 1))
    assert [one.believed for one in found] == [(True,), (True,)]
    assert all(one.objective < one.null_objective for one in found)
    for seed in (8, 9):
        for one in confidence(noise_instead(seen, seed), lambda t, s: attack(t, s, steps=8), seeds=(0, 1)):
            assert one.believed == (False,)


def test_the_null_has_the_length_of_the_update_and_nothing_else_of_it() -> None:
    seen = prepare(recorded(Residual), Residual)
    null = noise_instead(seen)
    start = seen.round(1).broadcast.tensors  # type: ignore[union-attr]
    for real, fake in zip(seen.round(1).received, null.round(1).received, strict=True):
        for name, value in real.payload.tensors.items():  # type: ignore[union-attr]
            one, two = value - start[name], fake.payload.tensors[name] - start[name]  # type: ignore[union-attr]
            assert float(two.norm()) == pytest.approx(float(one.norm()), rel=1e-3, abs=1e-6)
            if one.numel() > 50:
                assert abs(float(F.cosine_similarity(one.flatten(), two.flatten(), dim=0))) < 0.5


def test_a_refused_client_has_no_confidence_but_a_reason() -> None:
    seen = recorded(Residual)
    idle = replace(seen.round(1).received[0], payload=seen.round(1).broadcast)
    rounds = (replace(seen.round(1), received=(idle, seen.round(1).received[1])),)
    found = confidence(prepare(Transcript(seen.setup, rounds), Residual), lambda t, s: attack(t, s, steps=2))
    assert found[0].status == "refused"
    assert "zero everywhere" in found[0].reason
    assert found[0].believed == ()
    assert math.isnan(found[0].objective)
    assert found[1].status == "ok"


def test_agreement_needs_two_starts() -> None:
    with pytest.raises(RefusedError, match="at least two different starts"):
        confidence(recorded(Residual), attack, seeds=(1,))
