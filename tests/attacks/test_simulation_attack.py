"""The FedAvg simulation: identities between its methods, true images as a solution, bad input, presets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pydantic
import pytest
import torch
from fedavg_scene import CLASSES, NORMAL, SHAPE, Scene, rng, trained

from fedleak.attacks.simulation.clients import clients_of
from fedleak.attacks.simulation.fedavg_simulation import FedAvgSimulation
from fedleak.attacks.simulation.run import _Bucket
from fedleak.errors import KnowledgeError
from fedleak.seeding import Seeds
from fedleak.types import Message, ModelSpec, Reconstruction, Round, Transcript, Weights

METHODS = ("prior", "no_prior", "shared", "fedsgd_epoch", "fedsgd")


def attack(scene: Scene, seed: int = 0, **settings: Any) -> Reconstruction:
    settings = {"labels": "known", "steps": 4, **settings}
    return FedAvgSimulation(**settings)(scene.transcript, rng=rng(seed))


def images(found: Reconstruction) -> list[torch.Tensor]:
    return [victim.inputs for victim in found.victims]


def changed(scene: Scene, at: int, **values: Any) -> Transcript:
    """The same round, with other disclosed values for one client."""
    seen = scene.transcript.rounds[0]
    received = list(seen.received)
    received[at] = replace(received[at], disclosed={**received[at].disclosed, **values})
    return replace(scene.transcript, rounds=(Round(1, seen.broadcast, tuple(received)),))


# --- identities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["released", "paper", "strong"])
@pytest.mark.parametrize("count", [4, 5])
def test_over_one_epoch_the_methods_fall_into_two(preset: str, count: int) -> None:
    """Section 5.1: with one epoch prior, no prior and shared are one method, and so are the two FedSGD ones."""
    scene = trained((count, count), epochs=1)
    found = {method: attack(scene, method=method, preset=preset) for method in METHODS}
    for same in (("prior", "no_prior", "shared"), ("fedsgd_epoch", "fedsgd")):
        for other in same[1:]:
            for mine, theirs in zip(images(found[same[0]]), images(found[other]), strict=True):
                assert torch.equal(mine, theirs)
    assert not torch.equal(images(found["prior"])[0], images(found["fedsgd"])[0])


def test_over_one_epoch_of_one_batch_all_methods_are_one() -> None:
    scene = trained((3,), epochs=1, batch_size=None)
    first, *others = (images(attack(scene, method=method))[0] for method in METHODS)
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [4, 5, 1])
@pytest.mark.parametrize("distance", ["cosine", "layered_l2"])
def test_the_true_images_in_the_true_order_explain_the_update(count: int, distance: str) -> None:
    """Uneven last batches included: 5 examples in batches of 2 are 2, 2, 1 in every epoch, never across it."""
    scene = trained((count,), epochs=2, batch_size=2)
    settings = FedAvgSimulation(
        method="no_prior", labels="known_batches", distance=distance, tv=0.0, steps=1, project=False
    )
    bucket = _bucket(scene, settings)
    order = torch.stack([torch.cat(epoch) for epoch in scene.batches[0]])
    true = NORMAL.apply(scene.images[0])[order][None]
    assert torch.equal(scene.labels[0][order], bucket.labels[0])
    values, slopes = bucket._evaluation([0])(true, 0)
    assert float(values) < 1e-6 * (1.0 if distance == "cosine" else float(bucket.length) ** 2)
    noise = torch.randn(true.shape, generator=rng())
    assert float(bucket._evaluation([0])(noise, 0)[0]) > 100 * float(values) + 1e-4
    assert slopes.shape == true.shape


def test_a_client_of_one_full_batch_is_explained_by_fedsgd() -> None:
    scene = trained((3,), epochs=1, batch_size=None)
    bucket = _bucket(scene, FedAvgSimulation(method="fedsgd", labels="known_batches", tv=0.0, steps=1))
    order = torch.cat(scene.batches[0][0])
    values, _ = bucket._evaluation([0])(NORMAL.apply(scene.images[0])[order][None, None], 0)
    assert float(values) < 1e-6


@pytest.mark.parametrize(
    ("settings", "factor"),
    [({"matched": "mean"}, 1 / 8**2), ({"per_batch": True}, 1 / 8), ({"fac_start": 3.0, "fac_end": 1.0}, 3.0)],
)
def test_what_the_distance_is_divided_by(settings: dict[str, Any], factor: float) -> None:
    """4 epochs of 2 batches are 8 steps: the mean divides a squared distance by 64, k = U by 8."""
    scene = trained((4,), epochs=4)
    plain = {"method": "no_prior", "labels": "known", "distance": "layered_l2", "tv": 0.0, "steps": 1}
    points = torch.randn(1, 4, 4, *SHAPE, generator=rng())
    values = [
        _bucket(scene, FedAvgSimulation(**{**plain, **more}))._evaluation([0])(points, 0)[0] for more in ({}, settings)
    ]
    torch.testing.assert_close(values[1], factor * values[0])


@pytest.mark.parametrize("method", METHODS)
def test_the_slope_is_that_of_the_objective(method: str) -> None:
    """Against finite differences, with every term of the objective in it."""
    scene = trained((3,), epochs=2, model=ModelSpec("lenet", {"channels": 3}))
    settings = FedAvgSimulation(
        method=method, labels="known", preset="released", lambda_inv=0.3, g="conv_mean", clip=0.5, tv=1e-3, steps=1
    )
    bucket = _bucket(scene, settings)
    evaluate = bucket._evaluation([0])
    point = torch.randn(1, bucket.layout.sets, 3, *SHAPE, generator=rng(1))
    direction = torch.randn(point.shape, generator=rng(2))
    _, slope = evaluate(point, 0)
    step = 1e-2
    ahead, behind = (evaluate(point + sign * step * direction, 0)[0] for sign in (1, -1))
    torch.testing.assert_close((slope * direction).sum(), ((ahead - behind) / (2 * step))[0], rtol=2e-2, atol=1e-3)


def _bucket(scene: Scene, settings: FedAvgSimulation) -> _Bucket:
    setup, round_ = scene.transcript.setup, scene.transcript.rounds[0]
    clients, refused = clients_of(setup, round_, settings.labels, settings.order(), Seeds(0), lambda: None)  # type: ignore[arg-type,return-value]
    assert not refused
    assert isinstance(round_.broadcast, Weights)
    return _Bucket(setup, round_.broadcast, settings, clients, Seeds(0))


# --- what it finds ------------------------------------------------------------------------------------------------


def test_it_finds_images_that_it_was_not_shown() -> None:
    scene = trained((2,), epochs=2, batch_size=1, lr=0.2)
    found = attack(scene, labels="known_batches", steps=80, lr=0.3, tv=0.0)
    cost = (found.victims[0].inputs[:, None] - scene.images[0][None]).square().mean(dim=(2, 3, 4))
    best = torch.minimum(cost[0, 0] + cost[1, 1], cost[0, 1] + cost[1, 0]) / 2
    chance = (0.5 - scene.images[0]).square().mean()
    assert float(best) < 0.3 * float(chance)


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    scene = trained((4, 3))
    first, second, other = (attack(scene, seed=seed, labels="interpolated", dummies=40) for seed in (1, 1, 2))
    for mine, again, different in zip(images(first), images(second), images(other), strict=True):
        assert torch.equal(mine, again)
        assert not torch.equal(mine, different)
    assert torch.equal(first.trace.objective, second.trace.objective)


def test_clients_of_any_size_are_attacked_together_as_alone() -> None:
    scene = trained((5, 1, 4, 5), epochs=2, batch_size=2)
    together = attack(scene)
    assert [len(victim.inputs) for victim in together.victims] == [5, 1, 4, 5]
    for at, message in enumerate(scene.transcript.rounds[0].received):
        seen = replace(scene.transcript, rounds=(replace(scene.transcript.rounds[0], received=(message,)),))
        alone = FedAvgSimulation(labels="known", steps=4)(seen, rng=rng())
        torch.testing.assert_close(alone.victims[0].inputs, together.victims[at].inputs, rtol=1e-4, atol=1e-4)


def test_all_methods_are_given_the_same_split_of_the_labels() -> None:
    scene = trained((6,), epochs=3)
    found = [attack(scene, method=method).victims[0].labels for method in METHODS]
    for labels in found:
        assert labels is not None
        assert torch.equal(labels, found[0])  # type: ignore[arg-type]
        assert (
            torch.bincount(labels, minlength=CLASSES).tolist()
            == torch.bincount(scene.labels[0], minlength=CLASSES).tolist()
        )


@pytest.mark.parametrize("method", METHODS)
def test_the_notes_name_the_prior_where_there_is_one(method: str) -> None:
    notes = attack(trained((4,)), method=method, steps=1).notes
    assert {"lambda_inv", "g", "inv_norm"} & set(notes) == (
        {"lambda_inv", "g", "inv_norm"} if method == "prior" else set()
    )
    assert {"preset", "method", "lr", "tv"} < set(notes)


def test_of_several_starts_the_smallest_objective_counts() -> None:
    scene = trained((3,))
    several = attack(scene, restarts=3)
    assert several.victims[0].objective <= attack(scene).victims[0].objective
    assert len(several.notes["ended"]["client-0"]) == 4


def test_every_epochs_pictures_can_be_kept() -> None:
    scene = trained((4,), epochs=3)
    found = attack(scene, per_epoch=True)
    by_epoch = found.trace.snapshots[0]
    assert by_epoch.shape == (4, 4, *SHAPE)
    torch.testing.assert_close(by_epoch[:3].mean(dim=0), found.victims[0].inputs)
    torch.testing.assert_close(by_epoch[3], found.victims[0].inputs)


def test_the_trace_has_a_value_for_every_step_and_pictures_on_the_way() -> None:
    found = attack(trained((4,)), steps=6, snapshots=3)
    assert found.trace.objective.shape == (1, 7)
    assert found.trace.steps == tuple(range(7))
    assert len(found.trace.snapshot_steps) == 3
    torch.testing.assert_close(found.trace.snapshots[0][-1], found.victims[0].inputs)
    assert float(found.trace.objective[0, -1]) == pytest.approx(found.victims[0].objective)


def test_pixels_stay_in_range_where_they_are_projected() -> None:
    inside = attack(trained((4,)), lr=5.0).victims[0].inputs
    assert float(inside.min()) >= -1e-6
    assert float(inside.max()) <= 1 + 1e-6
    assert attack(trained((4,)), lr=5.0, project=False).victims[0].inputs.abs().max() > 1.5


# --- settings -----------------------------------------------------------------------------------------------------


def test_the_released_preset_has_a_column_for_grey_and_one_for_colour_pictures() -> None:
    released = FedAvgSimulation(preset="released")
    assert (released.steps, released.distance, released.per_batch, released.project) == (400, "layered_l2", True, False)
    grey, colour = released.chosen(1), released.chosen(3)
    assert (grey["lr"], grey["lambda_inv"], grey["g"]) == (0.4, 1000.0, "mean")
    assert (colour["lr"], colour["lambda_inv"], colour["g"]) == (0.1, 6.075, "conv_max")
    assert FedAvgSimulation(preset="released", lr=0.7).chosen(1)["lr"] == 0.7
    assert attack(trained((2,)), preset="released").notes["hyperparameters"] == "grey"


def test_labels_that_were_read_off_go_to_batches_sorted_in_the_released_code_only() -> None:
    assert FedAvgSimulation(preset="released", labels="interpolated").order() == "sorted"
    assert FedAvgSimulation(preset="released", labels="known").order() == "random"
    assert FedAvgSimulation(preset="paper", labels="interpolated").order() == "random"
    assert FedAvgSimulation(preset="released", label_order="random").order() == "random"


@pytest.mark.parametrize("wrong", [{"round": 0}, {"method": "all"}, {"lr": 0}, {"decay": 1.5}, {"preset": "weak"}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        FedAvgSimulation(**wrong)


def test_what_it_needs_depends_on_how_it_comes_by_the_labels() -> None:
    always = frozenset({"samples", "batch_size", "epochs", "lr"})
    assert FedAvgSimulation.needs == always == FedAvgSimulation().needs
    assert FedAvgSimulation(labels="known").needs == always | {"label_counts"}
    assert FedAvgSimulation(labels="known_batches").needs == always | {"batch_labels"}
    scene = trained((2,))
    seen = scene.transcript.granting(always)
    with pytest.raises(KnowledgeError, match="label_counts"):
        FedAvgSimulation(labels="known")(seen, rng=rng())


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "rule"),
    [
        ({"label_counts": [1, 1, 1, 0]}, "sum to 3, but samples=4"),
        ({"label_counts": [1, 1, 1, 0, 1]}, "5 entries, and the network has 4 classes"),
        ({"label_counts": [2, 2, 1, -1]}, "0 or more, for every class"),
        ({"label_counts": "many"}, "for every class"),
        ({"samples": 3}, "sum to 4, but samples=3"),
        ({"samples": 0}, "at least 1"),
        ({"epochs": 0}, "at least one epoch"),
        ({"batch_size": 0}, "at least one example"),
        ({"batch_size": 1.5}, "at least one example"),
        ({"samples": 10**9}, "samples=1000000000, epochs=2: their product must be at most 10,000,000 pictures"),
        ({"epochs": 10**7}, "samples=4, epochs=10000000"),
        ({"lr": 0}, "above 0"),
        ({"lr": float("nan")}, "above 0"),
        ({"lr": 1e-320}, "not finite"),
    ],
)
def test_a_client_whose_disclosed_values_are_wrong_is_refused_and_the_others_go_on(
    told: dict[str, Any], rule: str
) -> None:
    found = FedAvgSimulation(labels="known", steps=2)(changed(trained((4, 4)), 0, **told), rng=rng())
    wrong, right = found.victims
    assert (wrong.status, len(wrong.inputs)) == ("refused", 0)
    assert rule in wrong.reason
    assert (right.status, len(right.inputs)) == ("ok", 4)


@pytest.mark.parametrize(
    ("batches", "rule"),
    [
        ([[0, 1], [2, 3]], "must hold 4 batches"),
        ([[0, 1], [2, 3], [0, 1], [2, 4]], "from 0 to 3"),
        ([[0, 1], [2, 3], [0, 1], [2, 2]], "epoch 2 has other labels than epoch 1"),
        (7, "must hold"),
    ],
)
def test_batch_labels_that_do_not_fit_are_refused(batches: Any, rule: str) -> None:
    found = FedAvgSimulation(labels="known_batches", steps=2)(
        changed(trained((4,)), 0, batch_labels=batches), rng=rng()
    )
    assert found.victims[0].status == "refused"
    assert rule in found.victims[0].reason


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(bad: float) -> None:
    scene = trained((3, 3))
    seen = scene.transcript.rounds[0]
    payload = seen.received[0].payload
    assert isinstance(payload, Weights)
    name, value = next(iter(payload.tensors.items()))
    broken = Message(
        "client-0",
        Weights({**payload.tensors, name: value.clone().index_fill_(0, torch.tensor([0]), bad)}),
        seen.received[0].disclosed,
    )
    round_ = Round(1, seen.broadcast, (broken, seen.received[1]))
    found = FedAvgSimulation(labels="known", steps=2)(replace(scene.transcript, rounds=(round_,)), rng=rng())
    assert [victim.status for victim in found.victims] == ["refused", "ok"]
    assert "not finite" in found.victims[0].reason
