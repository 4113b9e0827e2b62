"""Defenses on the gradient of every example at every local step (appendix B of the FedAvg leakage paper)."""

from __future__ import annotations

import pydantic
import pytest
import torch

from fedleak.defenses import Clip, Context, Gaussian, Laplace, Plan, Prune, chain, label
from fedleak.federation import FedAvg
from fedleak.federation.base import Problem
from fedleak.seeding import Seeds
from fedleak.types import Examples, ModelSpec, Recording, Weights

STEP = Context("gradients")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def per_example(examples: int = 4) -> dict[str, torch.Tensor]:
    return {"w": torch.ones(examples, 200, 30), "b": torch.full((examples, 50), 3.0)}


@pytest.mark.parametrize("fraction", [0.2, 0.5])
def test_pruning_keeps_a_number_with_its_probability_and_does_not_rescale(fraction: float) -> None:
    out = Prune(fraction=fraction).apply(per_example(), STEP, rng())
    assert float((out["w"] == 0).double().mean()) == pytest.approx(fraction, abs=0.01)
    assert set(out["w"].unique().tolist()) == {0.0, 1.0}
    assert set(out["b"].unique().tolist()) == {0.0, 3.0}
    assert not torch.equal(out["w"][0], out["w"][1]), "every example has a choice of its own"


def test_pruning_nothing_and_everything() -> None:
    value = per_example()
    assert torch.equal(Prune(fraction=0).apply(value, STEP, rng())["w"], value["w"])
    assert not Prune(fraction=1).apply(value, STEP, rng())["w"].any()


def test_pruning_a_message_prunes_the_update_not_the_weights() -> None:
    first = {"w": torch.randn(500, generator=rng(1))}
    sent = Weights({"w": first["w"] + 0.1})
    context = Context("message", broadcast=Weights(first))
    out = Prune(fraction=0.5, on="message").apply(sent, context, rng())
    moved = (out.tensors["w"] - first["w"]).abs() > 0.05
    assert 0.4 < float(moved.double().mean()) < 0.6


@pytest.mark.parametrize(
    ("defense", "deviation"),
    [(Gaussian(sigma=0.03, on="gradients"), 0.03), (Laplace(scale=0.02, on="gradients"), 0.02 * 2**0.5)],
)
def test_noise_is_fresh_for_every_example_and_step_and_clips_nothing(
    defense: Gaussian | Laplace, deviation: float
) -> None:
    value, draw = per_example(), rng()
    first, second = (defense.apply(value, STEP, draw)["w"] - value["w"] for _ in range(2))
    assert float(first.std()) == pytest.approx(deviation, rel=0.03)
    assert float(first.mean()) == pytest.approx(0.0, abs=0.05 * deviation)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    assert torch.equal(value["w"], torch.ones(4, 200, 30))


def test_the_stage_is_a_choice() -> None:
    assert (Gaussian(sigma=1).stage, Gaussian(sigma=1, on="gradients").stage) == ("message", "gradients")
    assert (Prune(fraction=0.1).stage, Prune(fraction=0.1, on="message").stage) == ("gradients", "message")
    assert (Gaussian.stage, Laplace.stage, Prune.stage) == ("message", "message", "gradients")
    both = chain(Gaussian(sigma=1, on="gradients"), Clip(norm=1.0))
    assert torch.equal(both.apply(per_example(), Context("examples"), rng())["w"], per_example()["w"])


@pytest.mark.parametrize("given", [{"clip_layers": 1.0}, {"group": 2}])
def test_options_of_a_message_do_not_fit_gradients(given: dict[str, float]) -> None:
    with pytest.raises(pydantic.ValidationError, match="about the weights in a message"):
        Gaussian(sigma=1.0, on="gradients", **given)  # type: ignore[arg-type]


def test_nothing_is_proven_and_a_clip_of_the_message_keeps_its_bound() -> None:
    for defense in (Gaussian(sigma=1, on="gradients"), Laplace(scale=1, on="gradients"), Prune(fraction=0.5)):
        assert defense.guarantee(Plan(l2_bound=1.0)).kind == "empirical"
        assert chain(Clip(norm=2.0), defense).after(Plan()).l2_bound == 2.0


def test_labels_in_tables_name_the_stage_where_it_is_not_the_usual_one() -> None:
    assert label(Prune(fraction=0.5)) == "prune(fraction=0.5)"
    assert label(Gaussian(sigma=0.03, on="gradients")) == "gaussian(on=gradients, sigma=0.03)"


def federation(defense: object, **more: object) -> Recording:
    draw = rng(5)
    clients = {"client-0": Examples(torch.rand(5, 1, 6, 6, generator=draw), torch.tensor([0, 1, 2, 1, 0]))}
    problem = Problem(clients, clients["client-0"], ModelSpec("mlp", {"hidden": 5}), (1, 6, 6), 3)
    protocol = FedAvg(epochs=3, batch_size=2, lr=0.1, **more)  # type: ignore[arg-type]
    return protocol(problem, chain(defense), Seeds(0))  # type: ignore[arg-type]


def test_a_federation_applies_them_at_every_step_with_fresh_noise() -> None:
    """lr / batch size times the noise of all steps: the variance adds up only if every step draws anew."""
    sigma, lr = 0.5, 0.1
    plain, noisy = (
        federation(one).transcript.rounds[0].received[0].payload.tensors  # type: ignore[union-attr]
        for one in (Gaussian(sigma=0.0, on="gradients"), Gaussian(sigma=sigma, on="gradients"))
    )
    moved = torch.cat([(noisy[name] - plain[name]).flatten() for name in plain])
    expected = lr * sigma * (3 * (1 / 2 + 1 / 2 + 1)) ** 0.5
    assert float(moved.std()) == pytest.approx(expected, rel=0.25)
    pruned = federation(Prune(fraction=1.0)).transcript.rounds[0]
    assert pruned.broadcast is not None
    for name, value in pruned.broadcast.tensors.items():  # type: ignore[union-attr]
        assert torch.equal(pruned.received[0].payload.tensors[name], value)  # type: ignore[union-attr]


def test_the_labels_of_every_batch_are_disclosed_when_asked_for() -> None:
    known = federation(chain(), disclose=("samples", "batch_labels", "label_counts")).transcript.rounds[0].received[0]
    batches = known.disclosed["batch_labels"]
    assert [len(batch) for batch in batches] == [2, 2, 1] * 3
    for epoch in range(3):
        labels = [one for batch in batches[3 * epoch : 3 * epoch + 3] for one in batch]
        assert sorted(labels) == [0, 0, 1, 1, 2]
    assert "batch_labels" not in federation(chain()).transcript.rounds[0].received[0].disclosed
