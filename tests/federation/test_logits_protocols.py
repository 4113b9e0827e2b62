"""FedMD, FedGEMS and DS-FL: what is sent, in what order, what is recorded, and what only the evaluator holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from federation_parts import CLASSES, LOGIT, SHAPE, everything, problem, quick, said
from torch import Tensor, nn

from fedleak.defenses import chain, identity
from fedleak.federation import FederationProtocol, FedMD, Problem
from fedleak.federation.logits.client import Clients
from fedleak.models import build_model
from fedleak.seeding import Seeds
from fedleak.transcript import load_transcript, save_transcript
from fedleak.types import Predictions


@pytest.mark.parametrize("name", LOGIT)
def test_what_is_recorded(name: str) -> None:
    case, protocol = problem(), quick(name)
    assert isinstance(protocol, FederationProtocol)
    run = protocol(case, identity, Seeds(1))
    assert [r.index for r in run.transcript.rounds] == [1, 2, 3]
    for r in run.transcript.rounds:
        assert [m.sender for m in r.received] == ["client-0", "client-1"]
        for number, message in enumerate(r.received):
            assert said(r, number).values.shape == (20, CLASSES)
            assert said(r, number).index.tolist() == list(range(20))
            assert message.disclosed == {"samples": len(case.clients[message.sender])}
        assert r.server is not None
        assert r.server.scale == "logits"
        assert r.server.values.shape == (20, CLASSES)
        assert isinstance(r.broadcast, Predictions)
    setup, truth = run.transcript.setup, run.truth
    assert setup.public is case.public
    assert setup.disclosed["target_labels"] == [0, 1, 2, 3]
    assert truth.owners == ("client-0",) * 5 + ("client-1",) * 3
    assert truth.used[(3, "client-1")].tolist() == [5, 6, 7]
    assert truth.behind(1, "client-1").labels.tolist() == [2, 3, 2]
    assert truth.twins == 3
    assert truth.public is case.public
    assert len(truth.utility) == len(quick(name).evaluated_rounds()) == 4
    assert set(truth.predicted) == {(r, c) for r in (1, 2, 3) for c in case.clients}
    assert {len(value) for value in truth.predicted.values()} == {12}
    assert {key: len(value) for key, value in truth.entropies.items()} == {
        "server on public": 20,
        "server on private": 8,
        "client on public": 40,
        "client on private": 8,
    }
    assert float(truth.correct.mean()) == pytest.approx(truth.utility[-1])
    assert set(truth.correct.tolist()) <= {0.0, 0.5, 1.0}


@pytest.mark.parametrize("name", LOGIT)
def test_the_same_seed_gives_the_same_bits_and_another_one_others(name: str) -> None:
    one, same, other = (quick(name)(problem(), identity, Seeds(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(everything(one), everything(same), strict=True))
    assert not torch.equal(everything(one)[0], everything(other)[0])
    assert one.truth.utility == same.truth.utility


# --- FedMD by hand ------------------------------------------------------------------------------------------------


def by_hand(case: Problem, seeds: Seeds, protocol: FedMD) -> list[list[Tensor]]:
    """Algorithm S-1 with torch.optim, client by client: the uploads of every round."""
    assert case.public is not None
    assert case.public.labels is not None
    clients = Clients(case, protocol, chain(), seeds, "cpu")
    modules = {name: build_model(case.model, SHAPE, CLASSES, seeds.generator("model", name)) for name in case.clients}
    optimisers = {name: torch.optim.Adam(module.parameters(), lr=protocol.lr) for name, module in modules.items()}

    def epoch(name: str, inputs: Tensor, targets: Tensor, batches: Any, loss: Any) -> None:
        if protocol.moments == "fresh":
            optimisers[name] = torch.optim.Adam(modules[name].parameters(), lr=protocol.lr)
        for batch in batches:
            optimisers[name].zero_grad()
            loss(modules[name](inputs[batch]), targets[batch]).backward()
            optimisers[name].step()

    def order(name: str, index: int, what: str, count: int, size: int, epochs: int) -> list[Tensor]:
        rng = seeds.under("client", name, "round", index).generator(what)
        return [b for _ in range(epochs) for b in torch.split(torch.randperm(count, generator=rng), size)]

    public, labels = case.public.inputs, case.public.labels
    uploads = []
    for name, own in case.clients.items():
        epoch(name, public, labels, order(name, 0, "public", 20, 8, 2), nn.functional.cross_entropy)
        epoch(name, own.inputs, own.labels, order(name, 0, "private", len(own), 4, 3), nn.functional.cross_entropy)
    for index in range(1, 4):
        with torch.no_grad():
            sent = [module(public) for module in modules.values()]
        uploads.append(sent)
        mean = torch.stack(sent).mean(dim=0)
        for name, own in case.clients.items():
            epoch(name, public, mean, order(name, index, "public", 20, 8, 1), nn.functional.l1_loss)
            epoch(
                name, own.inputs, own.labels, order(name, index, "private", len(own), 4, 1), nn.functional.cross_entropy
            )
    assert len(clients) == len(case.clients)
    return uploads


@pytest.mark.parametrize("moments", ["fresh", "kept"])
def test_fedmd_is_algorithm_s1(moments: Any) -> None:
    case, seeds = problem(), Seeds(4)
    protocol = FedMD(
        rounds=3, lr=0.01, batch_size=4, public_batch_size=8, transfer_epochs=2, first_epochs=3, moments=moments
    )
    run = protocol(case, identity, seeds)
    for r, expected in zip(run.transcript.rounds, by_hand(case, seeds, protocol), strict=True):
        for number in range(2):
            assert torch.allclose(said(r, number).values, expected[number], atol=1e-4)
        assert isinstance(r.broadcast, Predictions)
        assert torch.allclose(r.broadcast.values, torch.stack(expected).mean(dim=0), atol=1e-4)


@pytest.mark.parametrize("name", LOGIT)
def test_the_moments_of_adam_are_kept_or_not(name: str) -> None:
    fresh, kept = (
        everything(replace(quick(name), moments=moments)(problem(), identity, Seeds(1)))
        for moments in ("fresh", "kept")
    )
    # Before the first phase there is nothing to keep; after it every model differs.
    assert not torch.equal(fresh[-1], kept[-1])


def test_the_server_of_fedmd_is_untrained_when_it_attacks_round_1() -> None:
    case, seeds = problem(), Seeds(5)
    untrained = build_model(case.model, SHAPE, CLASSES, seeds.generator("model"))
    assert case.public is not None
    expected = untrained(case.public.inputs)
    for protocol in (quick("fedmd"), quick("dsfl")):
        first, second = protocol(case, identity, seeds).transcript.rounds[:2]
        assert first.server is not None
        assert second.server is not None
        assert torch.allclose(first.server.values, expected, atol=1e-6)
        assert not torch.allclose(second.server.values, expected, atol=1e-3)


def test_the_server_of_fedgems_has_what_it_sent_out() -> None:
    run = quick("fedgems")(problem(), identity, Seeds(5))
    for r in run.transcript.rounds:
        assert isinstance(r.broadcast, Predictions)
        assert r.server is not None
        assert torch.equal(r.broadcast.values, r.server.values)


def test_dsfl_sends_out_the_sharpened_mean_of_what_it_received() -> None:
    for uploads in ("logits", "probabilities"):
        run = quick("dsfl", uploads=uploads, temperature=0.2)(problem(), identity, Seeds(6))
        for r in run.transcript.rounds:
            mean = torch.stack([said(r, 0).values, said(r, 1).values]).mean(dim=0)
            assert isinstance(r.broadcast, Predictions)
            assert r.broadcast.scale == "probabilities"
            assert torch.allclose(r.broadcast.values, torch.softmax(mean / 0.2, dim=-1), atol=1e-6)
            if uploads == "probabilities":
                assert torch.allclose(said(r).values.sum(dim=-1), torch.ones(20), atol=1e-5)


def test_federations_learn() -> None:
    """Each client lacks half of the classes: what it knows about them came through the public set."""
    for name, settings in (("fedmd", {}), ("fedgems", {}), ("dsfl", {"epochs": 8, "uploads": "probabilities"})):
        run = quick(name, rounds=8, lr=0.02, **settings)(problem(), identity, Seeds(0))
        assert run.truth.utility[-1] > 0.55, name


def test_predicted_is_of_the_model_behind_the_upload() -> None:
    """In FedMD a round begins with the upload, so its model is the one tested after the round before."""
    case = problem()
    run = quick("fedmd")(case, identity, Seeds(7))
    for index in (1, 2, 3):
        right = [
            (run.truth.predicted[(index, name)].long() == case.test.labels).double().mean() for name in case.clients
        ]
        assert float(sum(right)) / 2 == pytest.approx(run.truth.utility[index - 1])
    sparse = quick("fedmd", rounds=4, evaluate_every=3)(case, identity, Seeds(7))
    assert {index for index, _ in sparse.truth.predicted} == {3, 4}
    assert quick("fedmd", rounds=4, evaluate_every=3).predicted_rounds() == (3, 4)
    assert len(sparse.truth.utility) == 3


def test_a_recording_survives_the_disk(tmp_path: Path) -> None:
    run = quick("fedgems", alignment=7)(problem(), identity, Seeds(3))
    save_transcript(run.transcript, tmp_path / "t")
    again = load_transcript(tmp_path / "t")
    assert len(again.rounds) == 3
    for mine, theirs in zip(run.transcript.rounds, again.rounds, strict=True):
        assert torch.equal(said(mine).values, said(theirs).values)
        assert torch.equal(said(mine).index, said(theirs).index)
        assert mine.server is not None
        assert theirs.server is not None
        assert torch.equal(mine.server.values, theirs.server.values)
        assert isinstance(theirs.broadcast, Predictions)
        assert theirs.broadcast.scale == "logits"
    assert again.setup.disclosed["target_labels"] == [0, 1, 2, 3]
    assert again.setup.public is not None
    assert again.setup.public.domains is not None
