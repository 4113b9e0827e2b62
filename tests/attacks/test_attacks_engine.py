"""From a transcript to images: who is recovered, who is refused, and that one victim never changes another."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedleak.attacks import ATTACKS
from fedleak.attacks.inversion.dlg import DLG
from fedleak.attacks.inversion.dlm_plus import DLMPlus
from fedleak.types import (
    Gradients,
    ModelSpec,
    Normalisation,
    Reconstruction,
    RecoveredImages,
    Round,
    Transcript,
    Weights,
)

QUICK = {"steps": 3, "inner": 5, "candidates": 4}
"""Enough to tell two searches apart, where it does not matter how far they get."""


def attacked(attack: DLG | DLMPlus, seen: Transcript, seed: int = 0) -> Reconstruction:
    return attack(seen, rng=torch.Generator().manual_seed(seed))


def received(seen: Transcript, change: Callable[[Round], Round]) -> Transcript:
    return replace(seen, rounds=tuple(change(r) for r in seen.rounds))


def same(one: RecoveredImages, other: RecoveredImages) -> bool:
    return (
        torch.equal(one.inputs, other.inputs)
        and torch.equal(one.labels, other.labels)
        and one.objective == other.objective
    )


@pytest.mark.parametrize("sends", ["gradients", "weights"])
@pytest.mark.parametrize("name", ["dlg", "idlg", "cosine", "dlm", "dlm_plus"])
def test_images_and_labels_come_back(name: str, sends: str, scene: Callable, psnr: Callable) -> None:
    told = {"lr": 0.1, "epochs": 1, "batch_size": None}
    made = scene((1, 1, 1), sends=sends, disclosed=told)
    own = {} if name != "dlm" else {"gamma": 12.0} if sends == "weights" else {"gamma": 1.2, "gamma_unit": 0.01}
    found = attacked(ATTACKS[name](steps=60, **own), made.transcript)
    assert [v.sender for v in found.victims] == ["client-0", "client-1", "client-2"]
    for victim, images, labels in zip(found.victims, made.images, made.labels, strict=True):
        assert victim.status == "ok"
        assert psnr(victim.inputs, images) > 30
        assert victim.labels.tolist() == labels.tolist()


def test_pixels_come_back_through_the_normalisation(scene: Callable, psnr: Callable) -> None:
    made = scene((1,), normalisation=Normalisation((0.4,), (0.25,)))
    (victim,) = attacked(DLMPlus(steps=60), made.transcript).victims
    assert psnr(victim.inputs, made.images[0]) > 30


def test_the_scale_of_an_update_is_nothing_to_dlm_plus(scene: Callable, psnr: Callable) -> None:
    for lr in (1e-2, 1.0):
        made = scene((1,), sends="weights", lr=lr, dtype=torch.float64)
        (victim,) = attacked(DLMPlus(steps=40), made.transcript).victims
        assert psnr(victim.inputs, made.images[0]) > 30


def test_same_seed_same_bits_other_seed_other_start(scene: Callable) -> None:
    seen = scene((1, 2)).transcript
    attack = DLMPlus(**QUICK)
    first, again, other = attacked(attack, seen), attacked(attack, seen), attacked(attack, seen, seed=1)
    assert all(same(a, b) for a, b in zip(first.victims, again.victims, strict=True))
    assert torch.equal(first.trace.objective, again.trace.objective)
    assert not any(same(a, b) for a, b in zip(first.victims, other.victims, strict=True))


def test_torchs_own_generator_is_left_alone(scene: Callable) -> None:
    seen = scene((1,)).transcript
    before = torch.get_rng_state()
    attacked(DLMPlus(**QUICK), seen)
    assert torch.equal(before, torch.get_rng_state())


def test_batched_over_victims_is_one_at_a_time(scene: Callable) -> None:
    seen = scene((1, 1, 1), dtype=torch.float64).transcript
    attack = DLMPlus(**QUICK)
    together = attacked(attack, seen).victims
    for at, victim in enumerate(together):
        alone = received(seen, lambda r, at=at: replace(r, received=r.received[at : at + 1]))
        (other,) = attacked(attack, alone).victims
        torch.testing.assert_close(victim.inputs, other.inputs, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("chunk", [1, 2])
def test_a_smaller_chunk_changes_nothing(chunk: int, scene: Callable) -> None:
    seen = scene((1, 1, 1), dtype=torch.float64).transcript
    whole, parts = attacked(DLMPlus(**QUICK), seen), attacked(DLMPlus(chunk=chunk, **QUICK), seen)
    for one, other in zip(whole.victims, parts.victims, strict=True):
        torch.testing.assert_close(one.inputs, other.inputs, rtol=1e-6, atol=1e-8)
    assert parts.notes["chunk"] == chunk


def test_victims_of_different_sizes_are_a_plain_loop(scene: Callable) -> None:
    seen = scene((2, 1, 3, 1), dtype=torch.float64).transcript
    attack = DLMPlus(**QUICK)
    together = attacked(attack, seen).victims
    assert [len(v.inputs) for v in together] == [2, 1, 3, 1]
    assert [len(v.labels) for v in together] == [2, 1, 3, 1]
    for at, victim in enumerate(together):
        alone = received(seen, lambda r, at=at: replace(r, received=r.received[at : at + 1]))
        (other,) = attacked(attack, alone).victims
        assert victim.sender == other.sender
        torch.testing.assert_close(victim.inputs, other.inputs, rtol=1e-6, atol=1e-8)


def spoilt(seen: Transcript, at: int, payload: Gradients | Weights) -> Transcript:
    def change(round_: Round) -> Round:
        messages = list(round_.received)
        messages[at] = replace(messages[at], payload=payload)
        return replace(round_, received=tuple(messages))

    return received(seen, change)


@pytest.mark.parametrize("kind", ["zero", "nan", "shape", "names"])
def test_a_victim_that_cannot_be_used_is_refused_and_the_others_go_on(kind: str, scene: Callable) -> None:
    seen = scene((1, 1, 1)).transcript
    sent = seen.rounds[0].received[1].payload.tensors
    bad = {
        "zero": {name: torch.zeros_like(v) for name, v in sent.items()},
        "nan": {name: torch.full_like(v, float("nan")) for name, v in sent.items()},
        "shape": {name: v[..., :1] for name, v in sent.items()},
        "names": {f"x.{name}": v for name, v in sent.items()},
    }[kind]
    attack = DLMPlus(**QUICK)
    found = attacked(attack, spoilt(seen, 1, Gradients(bad)))
    without = attacked(attack, received(seen, lambda r: replace(r, received=(r.received[0], r.received[2]))))
    assert [v.status for v in found.victims] == ["ok", "refused", "ok"]
    assert found.victims[1].reason.startswith("round 1, client-1: ")
    assert found.victims[1].inputs.shape == (0, 1, 8, 8)
    assert same(found.victims[0], without.victims[0])
    assert same(found.victims[2], without.victims[1])
    assert found.trace.objective.shape[0] == len(found.trace.snapshots) == 3
    assert found.trace.objective[1].isnan().all()


def test_a_victim_that_never_is_finite_diverged_and_disturbs_nobody(scene: Callable) -> None:
    """Finite numbers so large that their squares are not."""
    seen = scene((1, 1), dtype=torch.float64).transcript
    sent = seen.rounds[0].received[0].payload.tensors
    huge = Gradients({name: torch.full_like(v, 1e200) for name, v in sent.items()})
    attack = DLG(restarts=1, **QUICK)
    found = attacked(attack, spoilt(seen, 0, huge))
    clean = attacked(attack, seen)
    assert [v.status for v in found.victims] == ["diverged", "ok"]
    assert "2 tried" in found.victims[0].reason
    assert math.isinf(found.victims[0].objective)
    assert found.victims[0].inputs.isfinite().all()
    assert found.notes["restarts"]["client-0"] == 1
    torch.testing.assert_close(found.victims[1].inputs, clean.victims[1].inputs, rtol=1e-6, atol=1e-8)


def test_without_broadcast_weights_everybody_is_refused(scene: Callable) -> None:
    seen = received(scene((1, 1)).transcript, lambda r: replace(r, broadcast=None))
    found = attacked(DLMPlus(**QUICK), seen)
    assert [v.status for v in found.victims] == ["refused"] * 2
    assert "no broadcast weights" in found.victims[0].reason


@pytest.mark.parametrize("samples", [0, -1, 1.5, "2", True])
def test_a_number_of_images_that_is_none_is_refused(samples: object, scene: Callable) -> None:
    seen = scene((1, 1)).transcript

    def change(round_: Round) -> Round:
        first, second = round_.received
        return replace(round_, received=(replace(first, disclosed={"samples": samples}), second))

    found = attacked(DLMPlus(**QUICK), received(seen, change))
    assert [v.status for v in found.victims] == ["refused", "ok"]
    assert f"samples={samples!r}" in found.victims[0].reason


def test_another_network_than_the_federations_is_refused(scene: Callable) -> None:
    seen = scene((1,)).transcript
    other = replace(seen, setup=replace(seen.setup, model=ModelSpec("lenet", {"channels": 5})))
    (victim,) = attacked(DLMPlus(**QUICK), other).victims
    assert victim.status == "refused"
    assert "not those that were broadcast" in victim.reason


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        out = self.head(inputs.flatten(1)).tanh()
        return out if out.sum().item() > 1e9 else 2 * out


def test_a_users_module_that_cannot_be_mapped_is_attacked_one_by_one(scene: Callable) -> None:
    made = scene((1, 1), model=ModelSpec("mine", factory=Branching))
    found = attacked(DLMPlus(steps=30), made.transcript)
    assert [v.status for v in found.victims] == ["ok", "ok"]
    assert "one by one" in found.notes["fallback"]
    assert found.notes["chunk"] == 1
    assert "fallback" not in attacked(DLMPlus(**QUICK), scene((1,)).transcript).notes


def test_the_trace_tells_the_way_of_every_victim(scene: Callable) -> None:
    seen = scene((1, 2)).transcript
    found = attacked(DLMPlus(steps=30, inner=5, snapshots=5), seen)
    trace, steps = found.trace, len(found.trace.steps)
    assert trace.steps == tuple(range(steps))
    assert trace.objective.shape == (2, steps)
    assert len(trace.snapshot_steps) == 5
    assert trace.snapshot_steps[0] == 0
    assert trace.snapshot_steps[-1] == steps - 1
    for at, victim in enumerate(found.victims):
        assert trace.snapshots[at].shape == (5, at + 1, 1, 8, 8)
        assert torch.equal(trace.snapshots[at][-1], victim.inputs)
        assert float(trace.objective[at, -1]) == pytest.approx(victim.objective)
        assert trace.objective[at, 0] > trace.objective[at, -1]


def test_no_snapshots_no_pictures(scene: Callable) -> None:
    found = attacked(DLMPlus(snapshots=0, **QUICK), scene((1,)).transcript)
    assert found.trace.snapshot_steps == ()
    assert found.trace.snapshots == ()


def test_of_several_starts_the_smallest_objective_counts(scene: Callable) -> None:
    """Too few steps to arrive: every start ends elsewhere, and the chosen one is the best by its own objective."""
    seen = scene((1,)).transcript
    options = {"steps": 2, "patience": 0, "agreement": 0.0, "goal": 0.0}
    several = attacked(DLMPlus(restarts=3, **options), seen)
    once = attacked(DLMPlus(restarts=0, **options), seen)
    assert several.notes["restarts"] == {"client-0": 3}
    assert several.notes["ended"] == {"client-0": ["steps"] * 4}
    assert several.victims[0].objective <= once.victims[0].objective


def test_the_attacked_round_can_be_chosen(scene: Callable) -> None:
    first, second = scene((1,), seed=0).transcript, scene((1,), seed=1).transcript
    both = replace(first, rounds=(*first.rounds, replace(second.rounds[0], index=2)))
    for number, alone in ((1, first), (2, second), (-1, second)):
        (victim,) = attacked(DLMPlus(round=number, **QUICK), both).victims
        (other,) = attacked(DLMPlus(**QUICK), alone).victims
        assert torch.equal(victim.inputs, other.inputs)
    assert attacked(DLMPlus(round=-1, **QUICK), both).victims[0].round == 2


def test_a_round_without_messages_gives_an_empty_finding(scene: Callable) -> None:
    seen = received(scene((1,)).transcript, lambda r: replace(r, received=()))
    assert attacked(DLMPlus(), seen).victims == ()
