"""Label counts read off weights: a network worked out by hand, the rounding rule case by case, and real training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pydantic
import pytest
import torch
from fedavg_scene import CLASSES, Scene, rng, trained
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedleak.attacks.simulation.counts import LabelEstimator, interpolants, labels_of, rounded_counts
from fedleak.attacks.simulation.label_counts import CountLabels
from fedleak.errors import RefusedError
from fedleak.types import LabelCounts, Message, ModelSpec, Round, Setup, Transcript, Weights


class Constant(nn.Module):
    """Features that do not depend on the picture, (2, 3), and a linear head: softmax and features are known exactly."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        features = inputs.new_tensor([2.0, 3.0]) + 0 * inputs.flatten(1)[:, :2]
        return self.head(features)


SPEC = ModelSpec("constant", factory=Constant)
SETUP = Setup(SPEC, (1, 1, 2), 3)


def by_hand(server: list[float], client: list[float]) -> tuple[LabelEstimator, Weights]:
    """A head without weights whose biases are the logarithms of the class probabilities."""

    def weights(probabilities: list[float]) -> Weights:
        return Weights({"head.weight": torch.zeros(3, 2), "head.bias": torch.tensor(probabilities).log()})

    return LabelEstimator(SETUP, weights(server), rng(), dummies=7), weights(client)


@pytest.mark.parametrize(
    ("rule", "share"), [("geng_server", 0.0), ("geng_client", 1 - 1 / 4), ("interpolated", (0 + 1 + 2 + 3) / 16)]
)
def test_counts_of_a_head_worked_out_by_hand(rule: Any, share: float) -> None:
    """O = 2 + 3 = 5 everywhere, so N p - N dW / (5 U) with p on the line from (.2 .3 .5) to (.6 .3 .1).

    With N = 10 and U = 4 steps, dW = (4, -2, -2) takes 10 * 4 / 20 = 2 off the first class and gives 1 to the others.
    """
    estimator, sent = by_hand([0.2, 0.3, 0.5], [0.6, 0.3, 0.1])
    update = {"head.weight": torch.tensor([[1.0, 3.0], [-2.0, 0.0], [1.0, -3.0]]), "head.bias": torch.zeros(3)}
    found = estimator.estimate(sent, update, 10, 4, rule)
    p = [0.2 + 0.4 * share, 0.3, 0.5 - 0.4 * share]
    assert found.tolist() == pytest.approx([10 * p[0] - 2, 10 * p[1] + 1, 10 * p[2] + 1], abs=1e-4)
    assert estimator.server.features == pytest.approx(5.0)
    assert estimator.head.weight == "head.weight"


def test_where_the_statistics_are_taken() -> None:
    assert interpolants("interpolated", 4, "released") == (0.0, 0.25, 0.5, 0.75)
    assert interpolants("geng_server", 4, "released") == (0.0,)
    assert interpolants("geng_client", 4, "released") == (0.75,)
    assert interpolants("geng_client", 4, "paper") == (1.0,)


@pytest.mark.parametrize(
    ("estimate", "total", "expected"),
    [
        ([2.0, 1.0, 0.0], 3, [2, 1, 0]),
        ([1.7, 0.2, 0.1], 2, [2, 0, 0]),  # one short: the largest remainder
        ([0.4, 0.6, 0.5], 2, [0, 1, 1]),  # two short
        ([2.9, 1.1, -1.0], 3, [2, 1, 0]),  # clipped at zero, and then it fits
        ([2.9, 1.1, -0.2], 2, [2, 0, 0]),  # one over: the smallest remainder of the classes that have any
        ([0.3, 0.3, 5.0], 2, [0, 0, 2]),  # far over: a class that has any loses one, then the largest
        ([5.5, 2.2, 0.0], 2, [1, 1, 0]),  # five over: one each, then from the largest
        ([0.9, -0.6, -0.1], 4, [2, 1, 1]),  # more short than classes: round again
    ],
)
def test_rounding_to_an_exact_total(estimate: list[float], total: int, expected: list[int]) -> None:
    assert rounded_counts(torch.tensor(estimate), total).tolist() == expected


@given(st.lists(st.floats(-20, 30), min_size=1, max_size=12), st.integers(0, 60))
def test_rounded_counts_are_whole_and_have_the_total(estimate: list[float], total: int) -> None:
    counts = rounded_counts(torch.tensor(estimate), total)
    assert int(counts.sum()) == total
    assert int(counts.min()) >= 0
    assert counts.dtype == torch.int64


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 20))
def test_too_many_are_taken_from_the_largest_one_by_one(counts: list[int], total: int) -> None:
    """Whole estimates have no remainders: one less of every class that has any, in order, then of the largest."""
    expected, over = list(counts), sum(counts) - total
    for at in [at for at, count in enumerate(counts) if count][: max(over, 0)]:
        expected[at] -= 1
    while sum(expected) > total:
        expected[expected.index(max(expected))] -= 1
    if over >= 0:
        assert rounded_counts(torch.tensor(counts, dtype=torch.float64), total).tolist() == expected


def test_absurd_estimates_are_cut_down_at_once() -> None:
    """A learning rate that is told far too small."""
    assert rounded_counts(torch.tensor([3e11, -5e11, 3e11, 1.0], dtype=torch.float64), 9).tolist() == [4, 0, 5, 0]
    assert rounded_counts(torch.tensor([1e300, 2.0, -1e300], dtype=torch.float64), 5).tolist() == [4, 1, 0]


def test_estimates_that_are_not_finite_are_refused() -> None:
    with pytest.raises(RefusedError, match="not finite"):
        rounded_counts(torch.tensor([1.0, float("nan")]), 2)


def test_labels_of_counts() -> None:
    assert labels_of([0, 2, 1]).tolist() == [1, 1, 2]


def attack(scene: Scene, seed: int = 0, **given: Any) -> LabelCounts:
    return CountLabels(**{"dummies": 200, **given})(scene.transcript, rng=rng(seed))


@pytest.mark.parametrize("rule", ["interpolated", "geng_server", "geng_client"])
def test_counts_of_clients_that_really_trained(rule: str) -> None:
    """Networks at their start: every rule is nearly right, for clients of any size, uneven last batches included."""
    scene = trained(
        (7, 12, 1), epochs=3, batch_size=4, lr=0.01, model=ModelSpec("cnn_femnist", {"widths": [4, 6]}), shape=(1, 8, 8)
    )
    found = attack(scene, rule=rule)
    errors = 0.0
    for victim, labels in zip(found.victims, scene.labels, strict=True):
        assert int(victim.counts.sum()) == len(labels)
        errors += float((victim.counts - torch.bincount(labels, minlength=CLASSES)).abs().sum()) / 2
    assert errors <= 4


def test_the_same_seed_gives_the_same_counts_and_presets_name_the_clients_end() -> None:
    scene = trained((6, 6))
    for one, other in zip(attack(scene).victims, attack(scene).victims, strict=True):
        assert torch.equal(one.counts, other.counts)
    assert CountLabels(preset="paper").client_at == "paper"
    assert CountLabels().client_at == "released"
    assert attack(scene).notes["rule"] == "interpolated"


def test_bad_input_is_refused_client_by_client() -> None:
    scene = trained((4, 4))
    seen = scene.transcript.rounds[0]
    received = (replace(seen.received[0], disclosed={"samples": 0}), seen.received[1])
    found = CountLabels(dummies=20)(replace(scene.transcript, rounds=(Round(1, seen.broadcast, received),)), rng=rng())
    assert [victim.status for victim in found.victims] == ["refused", "ok"]
    assert "samples=0" in found.victims[0].reason
    with pytest.raises(pydantic.ValidationError):
        CountLabels(round=0)


class Headless(nn.Module):
    """No tensor has one row per class."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scale * inputs.flatten(1)[:, :3]


def test_a_network_without_a_last_layer_is_refused_with_the_way_out() -> None:
    setup = Setup(
        ModelSpec("headless", factory=Headless), (1, 1, 3), 3, disclosed={"lr": 1.0, "epochs": 1, "batch_size": None}
    )
    sent = Message("client-0", Weights({"scale": torch.zeros(1)}), {"samples": 2})
    seen = Transcript(setup, (Round(1, Weights({"scale": torch.ones(1)}), (sent,)),))
    (victim,) = CountLabels(dummies=20)(seen, rng=rng()).victims
    assert victim.status == "refused"
    assert "labels='known'" in victim.reason
