"""tbi, ptbi and pli on predictions whose secret is known: patterns of classes that no public picture shows clean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from logit_parts import TARGETS, LogitScene, stage_logits
from torch import Tensor

from fedleak.attacks import ATTACKS
from fedleak.attacks.logits import engine
from fedleak.attacks.logits.training import InversionStack
from fedleak.components import configure
from fedleak.types import ClassReconstruction, Round, Transcript

FAST: dict[str, Any] = {"width": 0.02, "lr": 1e-2, "steps": 4, "batch_size": 16, "tau": 3.0}


def run(scene: LogitScene | Transcript, name: str = "ptbi", seed: int = 0, **fields: Any) -> ClassReconstruction:
    seen = scene.transcript if isinstance(scene, LogitScene) else scene
    found = configure(ATTACKS[name], {**FAST, **fields})(seen, rng=torch.Generator().manual_seed(seed))
    assert isinstance(found, ClassReconstruction)
    return found


def closeness(pictures: Tensor, patterns: Tensor) -> Tensor:
    """Correlation of every picture with every pattern."""
    one, other = (v.flatten(1) - v.flatten(1).mean(1, keepdim=True) for v in (pictures, patterns))
    return torch.nn.functional.normalize(one, dim=1) @ torch.nn.functional.normalize(other, dim=1).T


@pytest.fixture(scope="module")
def known() -> LogitScene:
    return stage_logits([[0, 1], [2]], rounds=3, clean=160)


@pytest.mark.parametrize(("name", "fields"), [("ptbi", {}), ("pli", {"prior": "mean"})])
def test_a_client_gives_away_the_classes_it_holds(known: LogitScene, name: str, fields: dict[str, Any]) -> None:
    """No public picture shows a target's pattern alone; who holds the class gives it away, and nobody else."""
    found = run(known, name, steps=8, **fields).victims[0]
    assert found.candidates is not None
    alike = torch.stack([closeness(own, known.patterns) for own in found.candidates])
    owner = {0: 0, 1: 0, 2: 1}
    for at, label in enumerate(TARGETS):
        assert int(alike[owner[label], at].argmax()) == label
        assert float(alike[owner[label], at, label]) > 0.75
        assert float(alike[owner[label], at, label]) > float(alike[1 - owner[label], at, label])


def test_a_round_is_read_once_or_again_where_all_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of LFW is 600 MB on disk."""
    read: list[int] = []

    def note(one: Round) -> Round:
        read.append(one.index)
        return one

    scene = stage_logits(rounds=3).transcript
    found = run(scene.mapped(note), steps=1)
    # Whether the attack can read what was sent is asked of the last round.
    assert sorted(read) == [1, 2, 3, 3]
    monkeypatch.setattr(engine, "KEPT_BYTES", 0)
    read.clear()
    again = run(scene.mapped(note), steps=1)
    assert sorted(read) == [1, 1, 2, 2, 3, 3, 3]
    assert torch.equal(found.victims[0].inputs, again.victims[0].inputs)
    assert again.victims[0].round == 3


@pytest.mark.parametrize("name", ["tbi", "ptbi", "pli"])
def test_what_a_finding_holds(name: str) -> None:
    scene = stage_logits([[0], [1], [2]], rounds=2)
    fields = {"prior": "mean"} if name == "pli" else {}
    found = run(scene, name, **fields)
    (victim,) = found.victims
    assert (victim.sender, victim.round, victim.status) == ("federation", 2, "ok")
    assert victim.labels.tolist() == list(TARGETS)
    assert victim.inputs.shape == (3, 1, 8, 8)
    assert 0 <= float(victim.inputs.min()) <= float(victim.inputs.max()) <= 1
    assert len(victim.by_round) == 2
    assert torch.equal(victim.by_round[-1], victim.inputs)
    assert not torch.equal(victim.by_round[0], victim.inputs)
    public = scene.public()
    assert public.domains is not None
    assert victim.prior is not None
    assert torch.allclose(victim.prior, public.inputs[public.domains == 0].mean(0).expand(3, -1, -1, -1), atol=1e-6)
    assert found.trace.steps == tuple(range(1, 9))
    assert found.trace.objective.shape == (1, 8)
    assert float(found.trace.objective[0, -1]) == victim.objective < float(found.trace.objective[0, 0])
    assert found.notes["clients"] == 3  # TBI's one network learns from all of them
    if name == "tbi":
        assert (victim.senders, victim.candidates, victim.chosen) == ((), None, ())
        assert run(scene, name, steps=1, clients="last").notes["clients"] == 1
    else:
        assert victim.senders == ("client-0", "client-1", "client-2")
        assert victim.candidates is not None
        for at, sender in enumerate(victim.chosen):
            assert torch.equal(victim.candidates[victim.senders.index(sender), at], victim.inputs[at])


@pytest.mark.parametrize("name", ["tbi", "ptbi", "pli"])
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    scene = stage_logits(rounds=1)
    one, same, other = (run(scene, name, seed, steps=1).victims[0].inputs for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_pli_without_a_weight_on_the_prior_is_ptbi() -> None:
    scene = stage_logits(rounds=1)
    assert torch.equal(run(scene, "pli", gamma=0.0).victims[0].inputs, run(scene, "ptbi").victims[0].inputs)


def test_a_heavy_prior_draws_the_pictures_to_it() -> None:
    scene = stage_logits(rounds=2)
    far = []
    for gamma in (0.0, 0.3, 30.0):
        victim = run(scene, "pli", gamma=gamma, prior="mean", steps=8).victims[0]
        assert victim.prior is not None
        far.append(float((victim.inputs - victim.prior).square().mean()))
    assert far[0] > far[1] > far[2]


def test_an_earlier_round_sees_only_what_came_until_then() -> None:
    scene = stage_logits(rounds=2)
    early = run(scene, round=1).victims[0]
    assert early.round == 1
    assert torch.equal(early.inputs, run(scene).victims[0].by_round[0])
    spoilt = scene.rounds_with(at=1, values=torch.zeros(1, 1))
    assert torch.equal(run(spoilt, round=1).victims[0].inputs, early.inputs)


def test_what_a_client_uploads_in_a_round_is_what_is_used() -> None:
    scene = stage_logits(rounds=2)
    payload = scene.transcript.rounds[1].received[0].payload
    changed = run(scene.rounds_with(at=1, values=payload.values.flip(0))).victims[0]
    plain = run(scene).victims[0]
    assert torch.equal(changed.by_round[0], plain.by_round[0])
    assert changed.candidates is not None
    assert plain.candidates is not None
    assert not torch.equal(changed.candidates[0], plain.candidates[0])
    assert torch.allclose(changed.candidates[1], plain.candidates[1], atol=1e-4)


@pytest.mark.parametrize("q", ["full", "client", "client_server", "client_entropy", "server"])
def test_every_ablation_of_q_runs(q: str) -> None:
    victim = run(stage_logits(rounds=1), q=q, steps=1).victims[0]
    assert victim.status == "ok"
    assert (victim.candidates is None) == (q == "server")


def test_client_alone_needs_no_server() -> None:
    with_server, without = stage_logits(rounds=1), stage_logits(rounds=1, server=False)
    finding = run(without, q="client", steps=1)
    assert "server" not in finding.notes
    assert torch.equal(finding.victims[0].inputs, run(with_server, q="client", steps=1).victims[0].inputs)


def test_the_slips_of_the_released_code_are_behind_their_preset() -> None:
    scene = stage_logits([[0], [1, 2]], rounds=2)
    alone = replace(scene.transcript, rounds=[replace(r, received=r.received[-1:]) for r in scene.transcript.rounds])
    last = {"clients": "last", "norm_after_first": "train"}
    assert torch.equal(run(scene, "tbi", **last).victims[0].inputs, run(alone, "tbi").victims[0].inputs)
    released = configure(ATTACKS["tbi"], {"preset": "released"})
    assert (released.clients, released.norm_after_first) == ("last", "eval")
    slipped, plain = (run(alone, "tbi", norm_after_first=mode).victims[0] for mode in ("eval", "train"))
    assert torch.equal(slipped.by_round[0], plain.by_round[0])
    assert not torch.equal(slipped.inputs, plain.inputs)
    assert configure(ATTACKS["ptbi"], {"preset": "released"}).rows == "batch"
    assert configure(ATTACKS["pli"], {"preset": "released"}).prior_epochs == 50
    assert configure(ATTACKS["pli"], {"preset": "paper"}).prior == "cyclegan"
    assert configure(ATTACKS["pli"], {"preset": "paper", "prior": "mean"}).prior == "mean"


def test_of_several_networks_the_one_with_the_smallest_loss_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three networks for each of two clients; each shows a picture of its own brightness."""
    losses = torch.tensor([0.5, 0.1, 0.2, 0.4, float("nan"), 0.3])  # client 0, client 1, client 0, ...
    monkeypatch.setattr(InversionStack, "fit", lambda stack, *_: losses)
    monkeypatch.setattr(InversionStack, "show", lambda stack, asked: _shades(len(stack), len(asked)))
    victim = run(stage_logits(rounds=1), steps=2, restarts=2).victims[0]
    assert victim.candidates is not None
    assert victim.candidates.mean(dim=(1, 2, 3, 4)).tolist() == [2.0, 1.0]


def _shades(networks: int, labels: int) -> Tensor:
    return torch.arange(float(networks)).reshape(-1, 1, 1, 1, 1).expand(-1, labels, 1, 8, 8)


def test_clients_may_come_and_go() -> None:
    scene = stage_logits([[0], [1], [2]], rounds=3)
    rounds = list(scene.transcript.rounds)
    rounds[0] = replace(rounds[0], received=rounds[0].received[:2])
    rounds[2] = replace(rounds[2], received=rounds[2].received[1:])
    finding = run(replace(scene.transcript, rounds=rounds))
    victim = finding.victims[0]
    assert victim.senders == ("client-0", "client-1", "client-2")
    assert len(victim.by_round) == 3
    assert finding.trace.steps == tuple(range(1, 13))
    # Client 0 was last seen in round 2: what it gives away is what it gave away then.
    until_two = run(replace(scene.transcript, rounds=rounds[:2])).victims[0]
    assert victim.candidates is not None
    assert until_two.candidates is not None
    assert torch.allclose(victim.candidates[0], until_two.candidates[0], atol=2e-3)


def test_an_alignment_subset_is_enough() -> None:
    scene = stage_logits(rounds=2)
    rounds = []
    for number, one in enumerate(scene.transcript.rounds):
        chosen = torch.arange(number, len(scene.public()), 2)

        def part(payload: Any, chosen: Tensor = chosen) -> Any:
            return replace(payload, values=payload.values[chosen], index=chosen)

        received = tuple(replace(m, payload=part(m.payload)) for m in one.received)
        rounds.append(replace(one, received=received, server=part(one.server)))
    for name in ("tbi", "ptbi"):
        assert run(replace(scene.transcript, rounds=rounds), name, steps=1).victims[0].status == "ok"


def test_a_network_that_diverges_keeps_its_last_finite_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = stage_logits(rounds=2)
    monkeypatch.setattr(InversionStack, "show", _broken_at_the_second_call(InversionStack.show))
    victim = run(scene).victims[0]
    assert victim.status == "diverged"
    assert "client-0: the inversion network diverged in round 2" in victim.reason
    assert torch.equal(victim.inputs, victim.by_round[0])
    assert bool(torch.isfinite(victim.inputs).all())


def test_a_network_that_never_was_finite_is_marked() -> None:
    victim = run(stage_logits(rounds=1), lr=1e38, weight_decay=1e38).victims[0]
    assert victim.status == "diverged"
    assert "diverged in round 1" in victim.reason


def _broken_at_the_second_call(show: Callable[[InversionStack, Tensor], Tensor]) -> Callable[..., Tensor]:
    calls: list[int] = []

    def broken(stack: InversionStack, inputs: Tensor) -> Tensor:
        calls.append(1)
        return show(stack, inputs) * (float("nan") if len(calls) > 1 else 1.0)

    return broken


@pytest.mark.parametrize(("fit", "said"), [(2, "stacks of at most 2"), (1, "stacks of at most 1")])
def test_what_does_not_fit_into_memory_is_trained_in_halves(
    monkeypatch: pytest.MonkeyPatch, fit: int, said: str
) -> None:
    """Half of the networks at a time, from the start: what was half done when memory ran out leaves no trace."""
    three, steps = stage_logits([[0], [1], [2]], rounds=2, clean=40), []
    whole = run(three)
    real = InversionStack.fit

    def fits(stack: InversionStack, *given: Any) -> Tensor:
        steps.append(len(stack))
        if len(stack) > fit and len(steps) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(stack, *given)

    monkeypatch.setattr(InversionStack, "fit", fits)
    halves = run(three)
    assert max(steps) == 3
    assert halves.notes["networks"] == f"{said}: more do not fit into memory"
    assert whole.notes["networks"] == "stacked"
    for one, other in zip(whole.victims[0].by_round, halves.victims[0].by_round, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-3)  # rounding, which training makes larger
    torch.testing.assert_close(whole.trace.objective, halves.trace.objective, rtol=1e-3, atol=0)


def test_one_network_that_does_not_fit_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def fits(stack: InversionStack, *given: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(InversionStack, "fit", fits)
    with pytest.raises(torch.OutOfMemoryError):
        run(stage_logits([[0], [1], [2]], rounds=1, clean=10))


def test_progress_is_told_to_the_end() -> None:
    told: list[tuple[int, int]] = []
    attack = configure(ATTACKS["ptbi"], FAST)
    attack(
        stage_logits(rounds=2).transcript,
        rng=torch.Generator().manual_seed(0),
        progress=lambda done, total: told.append((done, total)),
    )
    assert told == [(number, 8) for number in range(1, 9)]
