"""Clients with momentum: where it is disclosed, an update is taken to be as long as momentum makes it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fedavg_scene import rng, trained

import fedleak
from fedleak.api import Recording
from fedleak.attacks.simulation.contradictions import contradiction, head_of
from fedleak.attacks.simulation.fedavg_simulation import FedAvgSimulation
from fedleak.attacks.simulation.label_counts import CountLabels
from fedleak.attacks.simulation.sme import SME
from fedleak.attacks.simulation.tasks import task_of
from fedleak.learning.sgd import momentum_gain, momentum_step
from fedleak.types import Examples, Transcript, Weights

KNOWN = ("samples", "batch_size", "epochs", "lr", "label_counts")
MOMENTUM = 0.9


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9, 0.999999999])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_gain_is_how_far_equal_gradients_move_the_weights(momentum: float, steps: int) -> None:
    weights, velocity = {"w": torch.zeros(1, dtype=torch.float64)}, {}
    for _ in range(steps):
        gradient = {"w": torch.ones(1, dtype=torch.float64)}
        weights, velocity = momentum_step(weights, gradient, velocity, 0.1, momentum)
    assert -float(weights["w"]) == pytest.approx(0.1 * steps * momentum_gain(momentum, steps), rel=1e-12)


def recorded(disclose: tuple[str, ...]) -> Recording:
    """Four clients with images of four brightnesses, one for each class."""
    images = torch.Generator().manual_seed(0)
    clients = {}
    for number in range(4):
        labels = torch.randint(0, 4, (10,), generator=images)
        pixels = 0.2 * torch.rand(10, 1, 6, 6, generator=images) + 0.2 * labels[:, None, None, None]
        clients[f"client-{number}"] = Examples(pixels, labels)
    return fedleak.simulate(
        clients,
        clients["client-0"],
        model="mlp",
        lr=0.01,
        momentum=MOMENTUM,
        batch_size=2,
        epochs=3,
        disclose=list(disclose),
        device="cpu",
    )


def errors(disclose: tuple[str, ...]) -> float:
    made = recorded(disclose)
    found = fedleak.attack(made.transcript, "label_counts", device="cpu")
    judged = fedleak.judge(found, made.truth, metrics=["label_errors"]).values()
    return sum(sum(one.scores["label_errors"]) for one in judged)


def test_label_counts_are_right_where_momentum_is_disclosed() -> None:
    """Not told of it, fifteen steps look three times as long as they can be."""
    told, untold = errors((*KNOWN, "momentum")), errors(KNOWN)
    assert told <= 0.5 * untold, (told, untold)


def test_momentum_that_is_told_contradicts_nothing() -> None:
    def said(seen: Transcript) -> list[str]:
        round_, found = seen.rounds[0], []
        assert isinstance(round_.broadcast, Weights)
        head = head_of(seen.setup, round_.broadcast, rng())
        for at in range(len(round_.received)):
            task = task_of(seen.setup, round_, at)
            counts = torch.tensor(round_.received[at].disclosed["label_counts"])
            found.append(contradiction(seen.setup, task, head, torch.repeat_interleave(torch.arange(4), counts)))
        return found

    assert not any(said(recorded((*KNOWN, "momentum")).transcript))
    assert all("expect momentum" in one for one in said(recorded(KNOWN).transcript))


@pytest.mark.parametrize("attack", [FedAvgSimulation(steps=1), SME(steps=1), CountLabels()])
@pytest.mark.parametrize("momentum", [1.0, -0.1, "much", True])
def test_momentum_that_is_none_is_refused_and_the_others_go_on(
    attack: FedAvgSimulation | SME | CountLabels, momentum: object
) -> None:
    seen = trained().transcript
    first, other = seen.rounds[0].received
    wrong = replace(first, disclosed={**first.disclosed, "momentum": momentum})
    found = attack(replace(seen, rounds=(replace(seen.rounds[0], received=(wrong, other)),)), rng=rng())
    assert [one.status for one in found.victims] == ["refused", "ok"]
    assert f"momentum={momentum!r}: must be a number from 0 up and below 1" in found.victims[0].reason
