"""Secure aggregation: the server sees one sum, the judge knows whose examples are in it, attacks are told the truth."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fedleak
from fedleak.errors import KnowledgeError, RefusedError
from fedleak.learning.functional import Network, cross_entropy
from fedleak.learning.secure_sum import is_sum, summed
from fedleak.learning.sgd import batch_gradient
from fedleak.types import (
    Examples,
    Gradients,
    Message,
    ModelSpec,
    Predictions,
    Recording,
    Round,
    Setup,
    Transcript,
    Weights,
)

RNG = torch.Generator().manual_seed(0)
PICTURES = torch.rand(5, 1, 4, 4, generator=RNG)
LABELS = torch.tensor([0, 1, 2, 0, 1])
CLIENTS = {"a": Examples(PICTURES[:3], LABELS[:3]), "b": Examples(PICTURES[3:], LABELS[3:])}
TEST = Examples(PICTURES, LABELS)


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 3))


def federated(**settings: Any) -> Recording:
    return fedleak.simulate(CLIENTS, TEST, model=net, device="cpu", seed=3, **settings)


def gradient_of_all(recording: Recording) -> dict[str, torch.Tensor]:
    broadcast = recording.transcript.round(1).broadcast
    assert isinstance(broadcast, Weights)
    return dict(batch_gradient(Network(net()), cross_entropy, broadcast.tensors, PICTURES, LABELS).parameters)


def test_the_sum_of_fedsgd_is_the_gradient_of_the_pooled_batch() -> None:
    recording = federated(protocol="fedsgd", secure_aggregation=True)
    (only,) = recording.transcript.round(1).received
    assert isinstance(only.payload, Gradients)
    for name, value in gradient_of_all(recording).items():
        assert torch.allclose(only.payload.tensors[name], value, atol=1e-6), name


def test_the_sum_of_one_step_of_fedavg_is_one_step_on_the_pooled_batch() -> None:
    recording = federated(protocol="fedavg", secure_aggregation=True, lr=0.5)
    (only,) = recording.transcript.round(1).received
    start = recording.transcript.round(1).broadcast
    assert isinstance(only.payload, Weights)
    assert isinstance(start, Weights)
    for name, value in gradient_of_all(recording).items():
        assert torch.allclose(only.payload.tensors[name], start.tensors[name] - 0.5 * value, atol=1e-6), name


def test_the_federation_learns_the_same_and_shows_less() -> None:
    open_, closed = (federated(protocol="fedavg", rounds=3, record="all", secure_aggregation=s) for s in (False, True))
    assert open_.truth.utility == closed.truth.utility
    assert torch.equal(open_.truth.correct, closed.truth.correct)
    for one, two in zip(open_.transcript.rounds, closed.transcript.rounds, strict=True):
        assert [m.sender for m in one.received] == ["a", "b"]
        assert [m.sender for m in two.received] == ["sum of 2 clients"]
        assert torch.equal(one.broadcast.tensors["1.weight"], two.broadcast.tensors["1.weight"])  # type: ignore[union-attr]


def test_the_sum_discloses_what_holds_for_it() -> None:
    one = federated(protocol="fedavg", secure_aggregation=True, disclose=("samples", "batch_size", "epochs", "lr"))
    assert one.transcript.setup.disclosed == {"lr": 0.1}
    assert one.transcript.round(1).received[0].disclosed == {"samples": 5, "epochs": 1, "batch_size": None}
    many = federated(
        protocol="fedavg", epochs=2, secure_aggregation=True, disclose=("samples", "epochs", "label_counts")
    )
    assert many.transcript.round(1).received[0].disclosed == {"samples": 5, "label_counts": [2, 2, 1]}
    small = federated(protocol="fedavg", batch_size=2, secure_aggregation=True)
    assert "batch_size" not in small.transcript.round(1).received[0].disclosed
    whole = federated(protocol="fedavg", batch_size=3, secure_aggregation=True)
    assert whole.transcript.round(1).received[0].disclosed["batch_size"] is None


def test_the_judge_knows_whose_examples_are_in_the_sum() -> None:
    recording = federated(protocol="fedsgd", secure_aggregation=True)
    assert recording.truth.used[(1, "sum of 2 clients")].tolist() == [0, 1, 2, 3, 4]
    assert len(recording.truth.used) == 1
    finding = fedleak.attack(recording.transcript, "dlm_plus", steps=2, restarts=0, device="cpu")
    judged = fedleak.judge(finding, recording.truth)
    assert list(judged) == ["sum of 2 clients"]
    assert len(judged["sum of 2 clients"].scores["psnr"]) == 5


def test_an_attack_that_can_read_it_does() -> None:
    """One example each: the sum is a gradient of two, and DLM+ finds both."""
    recording = federated(protocol="fedsgd", examples=1, secure_aggregation=True)
    finding = fedleak.attack(recording.transcript, "dlm_plus", steps=60, restarts=2, device="cpu")
    judged = fedleak.judge(finding, recording.truth)["sum of 2 clients"]
    assert max(judged.scores["psnr"]) > 30


@pytest.mark.parametrize("name", ["label_counts", "dlg"])
def test_an_attack_that_cannot_read_it_says_so(name: str) -> None:
    recording = federated(protocol="fedavg", epochs=3, secure_aggregation=True)
    with pytest.raises(KnowledgeError, match="only the sum of its clients"):
        fedleak.attack(recording.transcript, name, device="cpu")


def test_clients_that_do_not_take_part_are_not_in_the_sum() -> None:
    recording = federated(protocol="fedavg", participation=0.5, secure_aggregation=True)
    (only,) = recording.transcript.round(1).received
    assert only.sender == "sum of 1 clients"
    assert is_sum(only)
    assert len(recording.truth.used[(1, "sum of 1 clients")]) == only.disclosed["samples"]


def test_a_recording_is_summed_afterwards_the_same() -> None:
    one = federated(protocol="fedavg", secure_aggregation=True).transcript
    other = summed(federated(protocol="fedavg").transcript)
    assert one.setup.disclosed == other.setup.disclosed
    (mine,), (theirs,) = one.round(1).received, other.round(1).received
    assert (mine.sender, mine.disclosed) == (theirs.sender, theirs.disclosed)
    assert torch.equal(mine.payload.tensors["1.weight"], theirs.payload.tensors["1.weight"])  # type: ignore[union-attr]


def said(*values: list[float], index: int = 0, scale: Any = "logits") -> Predictions:
    return Predictions(torch.tensor(values), scale, torch.arange(len(values)) + index)


def transcript(*payloads: Any) -> Transcript:
    messages = tuple(Message(f"c{at}", payload) for at, payload in enumerate(payloads))
    return Transcript(Setup(ModelSpec("m"), (1, 1, 2), 2), (Round(1, None, messages),))


def test_predictions_are_averaged() -> None:
    (only,) = summed(transcript(said([1.0, 3.0]), said([3.0, -1.0]))).round(1).received
    assert torch.equal(only.payload.values, torch.tensor([[2.0, 1.0]]))  # type: ignore[union-attr]
    assert only.disclosed == {}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (said([1.0, 2.0], index=4), "other examples"),
        (said([0.5, 0.5], scale="probabilities"), "another scale"),
        (Gradients({"w": torch.zeros(1)}), "gradients and predictions"),
    ],
)
def test_what_has_no_sum_is_refused(other: Any, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        summed(transcript(said([1.0, 2.0]), other)).round(1)
