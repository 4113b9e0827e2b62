"""The surrogate-model attack: exact where the client took one step, a learnt place on the line where it took many."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fedavg_scene import NORMAL, SHAPE, Scene, rng, trained

from fedleak.attacks.simulation.clients import clients_of
from fedleak.attacks.simulation.sme import SME, _Surrogate
from fedleak.errors import KnowledgeError
from fedleak.seeding import Seeds
from fedleak.types import ModelSpec, Reconstruction, Weights


def attack(scene: Scene, seed: int = 0, **given: Any) -> Reconstruction:
    return SME(**{"labels": "known", "steps": 4, **given})(scene.transcript, rng=rng(seed))


def objective(scene: Scene, **given: Any) -> _Surrogate:
    setup, round_ = scene.transcript.setup, scene.transcript.rounds[0]
    assert isinstance(round_.broadcast, Weights)
    clients, _ = clients_of(setup, round_, "known", "sorted", Seeds(0), lambda: None)  # type: ignore[arg-type,return-value]
    settings = SME(**{"tv": 0.0, "surrogate_lr": 1.0, "lr": 1.0, **given})
    return _Surrogate(settings, setup, round_.broadcast, clients, (1, clients[0].task.samples, *SHAPE))


def test_after_one_full_step_the_true_images_at_the_broadcast_weights_explain_the_update() -> None:
    scene = trained((3,), epochs=1, batch_size=None)
    evaluate = objective(scene).of([0])
    in_order = NORMAL.apply(scene.images[0])[scene.labels[0].argsort(stable=True)].flatten()
    at = [torch.cat([in_order, torch.tensor([a])])[None] for a in (0.0, 1.0)]
    assert float(evaluate(at[0], 0)[0]) < 1e-5
    assert float(evaluate(at[1], 0)[0]) > float(evaluate(at[0], 0)[0])


def test_slopes_are_those_of_the_objective_also_for_the_place_on_the_line() -> None:
    scene = trained((2, 2), epochs=2, lr=0.3, model=ModelSpec("lenet", {"channels": 3}))
    evaluate = objective(scene, tv=0.01).of([0, 1])
    points = torch.cat([torch.randn(2, 2 * 36, generator=rng()), torch.full((2, 1), 0.4)], dim=1)
    _, slopes = evaluate(points, 0)
    for at in (5, 72):
        step = torch.zeros_like(points)
        step[:, at] = 1e-2
        ahead, behind = evaluate(points + step, 0)[0], evaluate(points - step, 0)[0]
        torch.testing.assert_close(slopes[:, at], (ahead - behind) / 2e-2, rtol=0.05, atol=2e-4)


def test_it_falls_and_learns_where_on_the_line() -> None:
    scene = trained((2, 3), epochs=3, lr=0.3)
    found = attack(scene, steps=40, surrogate_lr=0.02)
    assert bool((found.trace.objective[:, -1] < 0.8 * found.trace.objective[:, 0]).all())
    places = found.notes["surrogate"]
    assert set(places) == {"client-0", "client-1"}
    assert all(0 <= a <= 1 and a != 0.5 for a in places.values())
    assert attack(scene, surrogate=0.3, surrogate_lr=0.0).notes["surrogate"]["client-0"] == pytest.approx(0.3)


def test_same_seed_same_bits_and_pixels_in_range() -> None:
    scene = trained((3,), model=ModelSpec("lenet", {"channels": 2}))
    first, second = attack(scene, restarts=1), attack(scene, restarts=1)
    assert torch.equal(first.victims[0].inputs, second.victims[0].inputs)
    assert first.victims[0].inputs.shape == (3, *SHAPE)
    assert float(first.victims[0].inputs.min()) >= -1e-6


def test_needs_and_refusals() -> None:
    assert SME(labels="known").needs == SME.needs | {"label_counts"}
    scene = trained((2, 2), told={"label_counts": [1, 1, 1, 1]})
    found = attack(scene)
    assert [victim.status for victim in found.victims] == ["refused", "refused"]
    with pytest.raises(KnowledgeError, match="samples"):
        SME()(scene.transcript.granting(frozenset()), rng=rng())
