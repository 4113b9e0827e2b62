"""Disclosed values that do not fit the update: what is marked, and that nothing true is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fedavg_scene import rng, trained

from fedleak.attacks.inversion.head import Head
from fedleak.attacks.simulation.clients import LabelSource, clients_of
from fedleak.attacks.simulation.contradictions import FAR, SEARCHED, contradiction, unreached
from fedleak.attacks.simulation.counts import LabelEstimator
from fedleak.attacks.simulation.fedavg_simulation import FedAvgSimulation
from fedleak.attacks.simulation.label_counts import CountLabels
from fedleak.attacks.simulation.sme import SME
from fedleak.attacks.simulation.tasks import Task
from fedleak.seeding import Seeds
from fedleak.types import Message, ModelSpec, Round, Setup, Transcript, Weights

SETUP = Setup(ModelSpec("any"), (1, 2, 2), 3)
HEAD = Head("head.weight", "head.bias", torch.full((3,), 1 / 3), 1.0)
SOURCES: tuple[LabelSource, ...] = ("known", "known_batches", "interpolated")


def task(pull: list[float], samples: int = 4, epochs: int = 2) -> Task:
    """Batches of 2 at lr 0.1; `pull` is the sum of the gradients of the three biases."""
    return Task(0, Message("client-0", Weights({})), samples, 2, epochs, 0.1, {"head.bias": torch.tensor(pull)})


def lying(seen: Transcript, **values: Any) -> Transcript:
    """The first client tells something else."""
    round_ = seen.rounds[0]
    first, *others = round_.received
    wrong = replace(first, disclosed={**first.disclosed, **values})
    return replace(seen, rounds=(Round(1, round_.broadcast, (wrong, *others)),))


# --- by hand ------------------------------------------------------------------------------------------------------


def test_all_biases_together_move_by_at_most_one_in_a_step() -> None:
    """4 examples in batches of 2 over 2 epochs are 4 steps: 2.5 + 1.4 may be, 2.5 + 1.6 not, each alone would."""
    assert contradiction(SETUP, task([2.5, 1.4, -3.9]), HEAD) == ""
    said = contradiction(SETUP, task([2.5, 1.6, -4.1]), HEAD)
    assert "4 steps at lr=0.1" in said
    assert "at most 0.4 in all, and the update has 0.41" in said


@pytest.mark.parametrize(
    ("pull", "labels", "worst"),
    [
        ([-1.9, -0.9, 2.8], [0, 0, 1, 2], ""),  # 2 of 4 examples fill half of every epoch's batches: 2 in 4 steps
        ([-2.1, 0.9, 1.2], [0, 0, 1, 2], "class 0, of which there are 2 among 4, by at most 0.2,"),
        ([0.0, -0.1, 0.1], [0, 0, 2, 2], "class 1, of which there are 0 among 4, by at most 0,"),
        ([-2.9, 1.4, 1.5], [0, 0, 1], ""),  # alone in the last batch of one, and half of the other: 1.5 an epoch
        ([-3.1, 1.6, 1.5], [0, 0, 1], "class 0, of which there are 2 among 3, by at most 0.3,"),
    ],
)
def test_a_class_pushes_its_bias_up_by_its_share_of_the_batches(
    pull: list[float], labels: list[int], worst: str
) -> None:
    said = contradiction(SETUP, task(pull, len(labels)), HEAD, torch.tensor(labels))
    assert worst in said
    assert bool(said) == bool(worst)


def test_without_a_bias_or_with_another_loss_nothing_is_known() -> None:
    far = task([9.0, -9.0, 0.0])
    assert contradiction(SETUP, far, HEAD) != ""
    assert contradiction(SETUP, far, None) == ""
    assert contradiction(SETUP, far, replace(HEAD, bias=None)) == ""
    assert contradiction(replace(SETUP, loss="mse"), far, HEAD) == ""


def test_how_far_the_simulated_training_may_end_from_the_clients() -> None:
    assert unreached(task([]), FAR) == unreached(task([]), 1 / FAR) == unreached(task([]), float("nan")) == ""
    assert "moved the weights 8 times as far" in unreached(task([]), 8.0)
    assert "lr=0.1 (samples=4, batch_size=2, epochs=2)" in unreached(task([]), 0.1)


# --- clients that really trained ----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("lr", [0.01, 2.0])
def test_what_is_true_is_never_marked(source: LabelSource, lr: float) -> None:
    """Batches that do not divide the examples, a client of one, large steps."""
    seen = trained((1, 2, 5, 7, 8), epochs=3, batch_size=3, lr=lr).transcript
    broadcast = seen.rounds[0].broadcast
    assert isinstance(broadcast, Weights)
    estimator = LabelEstimator(seen.setup, broadcast, rng(), 30)
    clients, refused = clients_of(seen.setup, seen.rounds[0], source, "random", Seeds(0), lambda: estimator)
    assert [client.remark for client in clients] == [""] * 5
    assert not refused


@pytest.mark.parametrize("source", SOURCES)
def test_a_learning_rate_that_is_too_small_is_marked_and_the_others_are_not(source: LabelSource) -> None:
    scene = trained((4, 4), lr=0.5)
    attacks = [FedAvgSimulation(labels=source, dummies=30, steps=2)]
    attacks += [SME(labels=source, dummies=30, steps=2)] if source != "known_batches" else []  # type: ignore[list-item]
    for attack in attacks:
        wrong, right = attack(lying(scene.transcript, lr=0.01), rng=rng()).victims
        assert "disclosed values contradict the update" in wrong.reason
        assert (wrong.status, right.status, right.reason) == ("ok", "ok", "")


def test_label_counts_are_marked_too() -> None:
    found = CountLabels(dummies=30)(lying(trained((4, 4), lr=0.5).transcript, lr=0.01), rng=rng())
    assert "contradict" in found.victims[0].reason
    assert (found.victims[0].status, found.victims[1].reason) == ("ok", "")


@pytest.mark.parametrize("preset", ["strong", "released"])
def test_a_learning_rate_that_is_too_large_is_marked_after_the_search(preset: Any) -> None:
    seen = lying(trained((4, 4)).transcript, lr=5.0)
    wrong, right = FedAvgSimulation(preset=preset, labels="known", steps=SEARCHED, restarts=1)(seen, rng=rng()).victims
    assert "disclosed values do not fit the update" in wrong.reason
    assert (wrong.status, right.status, right.reason) == ("ok", "ok", "")
    early = FedAvgSimulation(preset=preset, labels="known", steps=SEARCHED - 1)(seen, rng=rng()).victims
    assert [victim.reason for victim in early] == ["", ""], "a search that has hardly begun says nothing"
