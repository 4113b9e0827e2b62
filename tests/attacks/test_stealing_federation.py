"""From a simulated federation to a stolen model: the attack works, and every defense of predictions goes through."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attacks.stealing_parts import rng
from fedleak import simulate
from fedleak.attacks.stealing.adamsa import AdaMSA
from fedleak.attacks.stealing.msa import MSA
from fedleak.defenses import (
    CrossDomain,
    Defense,
    Directed,
    Gaussian,
    LabelOnly,
    Laplace,
    OneShot,
    Round,
    Temperature,
    TopK,
    label,
)
from fedleak.metrics import judge
from fedleak.types import Examples, PublicSet, Recording

CLASSES = 6
QUICK: dict[str, Any] = {"network": {"name": "cnn", "widths": [6, 8], "hidden": 24}, "epochs": 8, "lr": 0.01}


def drawn(count: int, seed: int, spread: float = 0.25) -> Examples:
    """A bright bar whose place is the class, on noise."""
    labels = torch.arange(count) % CLASSES
    inputs = spread * torch.rand(count, 1, 12, 12, generator=rng(seed))
    for at, place in enumerate(labels.tolist()):
        inputs[at, :, 2 * place : 2 * place + 2] += 0.6
    return Examples(inputs.clamp(0, 1), labels)


def federation(*defenses: Defense, rounds: int = 2) -> Recording:
    own, foreign = drawn(120, 50), torch.rand(60, 1, 12, 12, generator=rng(51))
    public = PublicSet(torch.cat([own.inputs, foreign]), None, torch.tensor([0] * 120 + [1] * 60))
    clients = {f"client-{k}": drawn(36, k) for k in range(2)}
    return simulate(
        clients,
        drawn(120, 99),
        model="cnn",
        protocol="fedmd",
        defenses=defenses,
        public=public,
        device="cpu",
        preset="adamsa",
        rounds=rounds,
        lr=0.003,
        epochs=4,
        first_epochs=12,
        public_batch_size=64,
    )


def accuracies(recording: Recording, attack: MSA | AdaMSA) -> dict[str, float]:
    found = attack(recording.transcript, rng=rng(1))
    names = ("attack_accuracy", "fidelity", "victim_accuracy")
    judged = [judge(v, recording.truth, names, 0.0, None, rng(2)).scores for v in found.victims]
    return {name: sum(sum(s[name]) / len(s[name]) for s in judged) / len(judged) for name in names}


@pytest.fixture(scope="module")
def undefended() -> Recording:
    return federation()


@pytest.mark.parametrize("attack", [MSA(**QUICK), AdaMSA(**QUICK)], ids=["msa", "adamsa"])
def test_a_stolen_model_is_three_times_better_than_chance_and_like_its_victim(
    attack: MSA | AdaMSA, undefended: Recording
) -> None:
    found = accuracies(undefended, attack)
    assert found["victim_accuracy"] > 0.7
    assert found["attack_accuracy"] >= 3 / CLASSES
    assert found["fidelity"] >= 3 / CLASSES


@pytest.mark.parametrize(
    "defense",
    [
        Gaussian(variance=0.01),
        Laplace(variance=0.01),
        Directed(gamma=0.1),
        Directed(gamma=0.1, scope="example", layers="last"),
        Round(decimals=1),
        TopK(k=2),
        Temperature(t=2.0),
        LabelOnly(),
        OneShot(),
        CrossDomain(),
    ],
    ids=label,
)
def test_a_defended_federation_can_be_attacked_and_sends_what_the_defense_leaves(
    defense: Defense, undefended: Recording
) -> None:
    recording = federation(defense)
    assert len(recording.transcript.rounds) == (1 if isinstance(defense, OneShot) else 2)
    sent, plain = (one.transcript.round(1).received[0].payload for one in (recording, undefended))
    assert len(sent.values) == (60 if isinstance(defense, CrossDomain) else 180)
    if defense.stage == "message":
        assert not torch.equal(sent.values, plain.values)
    assert [v.status for v in MSA(**{**QUICK, "epochs": 1})(recording.transcript, rng=rng(1)).victims] == ["ok", "ok"]


def test_strong_noise_takes_the_model_from_the_attacker(undefended: Recording) -> None:
    noisy = accuracies(federation(Gaussian(sigma=20.0)), MSA(**QUICK))
    assert noisy["attack_accuracy"] < accuracies(undefended, MSA(**QUICK))["attack_accuracy"] - 0.2
