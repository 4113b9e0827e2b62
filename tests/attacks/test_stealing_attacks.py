"""MSA and AdaMSA: what they find, what they agree on, and what they refuse."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
import torch
from torch import Tensor, nn

from attacks.stealing_parts import (
    CLASSES,
    IMITATION,
    PUBLIC,
    SHAPE,
    images,
    predictions,
    rng,
    steady,
    teacher,
    transcript,
    without_public,
)
from fedleak.attacks.stealing.adamsa import AdaMSA
from fedleak.attacks.stealing.msa import MSA
from fedleak.audit.work import attack_transcript
from fedleak.components import configure, resolved
from fedleak.errors import RefusedError
from fedleak.learning.functional import Network, predict
from fedleak.models import build_model
from fedleak.types import Predictions, StolenModel, StolenModels, Transcript

QUICK: dict[str, Any] = {"network": IMITATION, "epochs": 2, "batch_size": 32, "lr": 0.01}


def stolen(attack: MSA | AdaMSA, seen: Transcript, seed: int = 0) -> StolenModels:
    return attack(seen, rng=rng(seed))


def says(found: StolenModel, inputs: Tensor) -> Tensor:
    module = build_model(found.model, SHAPE, CLASSES).eval()
    weights = {**found.weights.tensors, **found.weights.buffers}
    return predict(Network(module), weights, found.normalisation.apply(inputs))


def equal(one: StolenModel, two: StolenModel) -> bool:
    return all(torch.equal(one.weights.tensors[name], value) for name, value in two.weights.tensors.items())


@pytest.mark.parametrize("scale", ["probabilities", "logits"])
def test_the_imitation_agrees_with_its_own_victim_on_new_images(scale: Any) -> None:
    found = stolen(MSA(network=IMITATION, epochs=150, batch_size=32, lr=0.01), steady(rounds=2, scale=scale))
    fresh = images(200, seed=99)
    for k, victim in enumerate(found.victims):
        guess = says(victim, fresh).argmax(dim=-1)
        own, other = (float((guess == teacher(j, fresh).argmax(-1)).float().mean()) for j in (k, 1 - k))
        assert own > 0.6
        assert own > other + 0.2


def test_the_finding_holds_the_model_and_its_way() -> None:
    found = stolen(MSA(**QUICK), steady(rounds=3))
    assert [v.sender for v in found.victims] == ["client-0", "client-1"]
    for victim in found.victims:
        assert victim.status == "ok"
        assert victim.round == 3
        assert [at for at, _ in victim.history] == [1, 2, 3]
        assert all(torch.equal(victim.weights.tensors[n], v) for n, v in victim.history[-1][1].tensors.items())
    assert found.trace.steps == (1, 2, 3)
    assert found.trace.objective.shape == (2, 3)
    # Warm-started: every round goes on from the one before.
    assert (found.trace.objective[:, 1:] < found.trace.objective[:, :-1]).all()
    assert found.victims[0].objective == pytest.approx(float(found.trace.objective[0, -1]))


@pytest.mark.parametrize("network", [IMITATION, {"name": "adamsa_cnn", "widths": [4], "norm": "batch"}])
def test_the_objective_is_the_divergence_from_the_target(network: dict[str, Any]) -> None:
    """Also where running statistics belong to the stolen model: they travel with its weights."""
    found = stolen(MSA(**{**QUICK, "network": network}), steady(rounds=1, clients=1)).victims[0]
    target, outputs = predictions(0).values, says(found, images())
    expected = torch.nn.functional.kl_div(outputs.log_softmax(-1), target, reduction="batchmean")
    assert found.objective == pytest.approx(float(expected), rel=1e-4)


def test_with_one_round_adamsa_is_msa() -> None:
    seen = steady(rounds=1)
    msa, ada = stolen(MSA(**QUICK), seen), stolen(AdaMSA(**QUICK), seen)
    assert all(equal(a, b) for a, b in zip(msa.victims, ada.victims, strict=True))
    assert "AdaMSA is MSA" in ada.notes["history"]


def test_the_runner_lets_both_recipes_draw_the_same() -> None:
    """Or a gap between them in a single round, where the paper prints one, would be luck."""
    seen = steady(rounds=1)
    msa, _ = attack_transcript(MSA(**QUICK), "msa", seen, 7, "cpu")
    ada, _ = attack_transcript(AdaMSA(**QUICK), "adamsa", seen, 7, "cpu")
    other, _ = attack_transcript(MSA(**QUICK), "msa", seen, 8, "cpu")
    assert isinstance(msa, StolenModels)
    assert isinstance(ada, StolenModels)
    assert isinstance(other, StolenModels)
    assert equal(msa.victims[0], ada.victims[0])
    assert not equal(msa.victims[0], other.victims[0])


def test_without_history_adamsa_is_msa() -> None:
    seen = transcript([{"a": predictions(t)} for t in range(4)])
    msa, ada = stolen(MSA(**QUICK), seen), stolen(AdaMSA(T0=0, **QUICK), seen)
    assert equal(msa.victims[0], ada.victims[0])
    assert not equal(msa.victims[0], stolen(AdaMSA(T0=3, **QUICK), seen).victims[0])


def test_in_one_round_literal_weights_only_halve_the_loss() -> None:
    """w0 = 0.5 is a factor of the loss, which Adam does not notice beyond its epsilon."""
    seen = steady(rounds=1, clients=1)
    plain, literal = (stolen(AdaMSA(weights=rule, **QUICK), seen).victims[0] for rule in ("normalised", "literal"))
    assert torch.allclose(says(plain, images()), says(literal, images()), atol=1e-4)
    assert not equal(plain, literal)
    assert literal.objective == pytest.approx(plain.objective, rel=1e-3)


DROPPING: dict[str, Any] = {"name": "adamsa_cnn", "widths": [4, 4], "dropout": 0.5}


@pytest.mark.parametrize("network", [IMITATION, DROPPING])
def test_a_victim_does_not_depend_on_who_else_is_attacked(network: dict[str, Any]) -> None:
    seen, quick = steady(rounds=2, clients=3), {**QUICK, "network": network}
    everyone = stolen(MSA(**quick), seen)
    assert equal(everyone.victims[0], stolen(MSA(victims=1, **quick), seen).victims[0])
    assert len(stolen(MSA(victims=2, **quick), seen).victims) == 2
    apart = stolen(MSA(chunk=1, **quick), seen)
    assert all(equal(a, b) for a, b in zip(everyone.victims, apart.victims, strict=True))


class Inside(nn.Module):
    """Drops without a layer that says so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(36, 16), nn.Linear(16, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs.flatten(1)).relu()
        out: Tensor = self.second(nn.functional.dropout(hidden, 0.5, self.training))
        return out


def test_nor_in_a_network_of_ones_own_that_drops_inside() -> None:
    seen, quick = steady(rounds=2, clients=3).with_model(Inside), {**QUICK, "network": "federation"}
    everyone, alone = stolen(MSA(**quick), seen), stolen(MSA(chunk=1, **quick), seen)
    assert all(equal(a, b) for a, b in zip(everyone.victims, alone.victims, strict=True))


def test_what_an_imitation_drops_is_drawn_anew_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Tensor] = []
    plain = nn.Dropout.forward

    def look(layer: nn.Dropout, inputs: Tensor) -> Tensor:
        if layer.training:
            drawn.append(torch.get_rng_state())
        return plain(layer, inputs)

    monkeypatch.setattr(nn.Dropout, "forward", look)
    stolen(MSA(**{**QUICK, "network": DROPPING}), steady(rounds=2, clients=2))
    first = drawn[:: len(drawn) // 4]  # of two victims in two rounds each
    assert len({tuple(state.tolist()) for state in first}) == 4


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    seen = steady(rounds=2)
    first, again, other = (stolen(AdaMSA(**QUICK), seen, seed) for seed in (1, 1, 2))
    assert equal(first.victims[1], again.victims[1])
    assert not equal(first.victims[1], other.victims[1])


def test_an_earlier_round_reads_nothing_of_later_ones() -> None:
    full = transcript([{"a": predictions(t)} for t in range(4)])
    cut = transcript([{"a": predictions(t)} for t in range(2)])
    assert equal(stolen(AdaMSA(round=2, **QUICK), full).victims[0], stolen(AdaMSA(**QUICK), cut).victims[0])
    assert stolen(AdaMSA(round=2, **QUICK), full).victims[0].round == 2


def test_alignment_subsets_are_fine_without_history_and_refused_with_it() -> None:
    half = torch.arange(0, PUBLIC, 2)
    seen = transcript([{"a": predictions(0, index=half + t), "b": predictions(1)} for t in range(2)])
    assert [v.status for v in stolen(MSA(**QUICK), seen).victims] == ["ok", "ok"]
    found = stolen(AdaMSA(**QUICK), seen).victims
    assert [v.status for v in found] == ["refused", "ok"]
    assert "different public examples" in found[0].reason


def test_a_client_that_misses_rounds_is_stolen_as_it_was_last() -> None:
    seen = transcript([{"a": predictions(0), "b": predictions(1)}, {"b": predictions(1)}])
    found = stolen(MSA(**QUICK), seen)
    assert [(v.sender, v.round, len(v.history)) for v in found.victims] == [("a", 1, 1), ("b", 2, 2)]
    assert bool(found.trace.objective[0, 1].isnan())


def test_predictions_that_change_length_refuse_that_victim_alone() -> None:
    short = Predictions(predictions(0).values[:50], "probabilities", torch.arange(PUBLIC))
    seen = transcript([{"a": predictions(0), "b": predictions(1)}, {"a": short, "b": predictions(1)}])
    found = stolen(MSA(**QUICK), seen).victims
    assert [v.status for v in found] == ["refused", "ok"]
    assert "length changed" in found[0].reason


def test_more_starts_never_end_worse() -> None:
    seen = steady(rounds=1)
    one, three = stolen(MSA(**QUICK), seen), stolen(MSA(restarts=2, **QUICK), seen)
    for alone, best in zip(one.victims, three.victims, strict=True):
        assert best.objective <= alone.objective


def test_steps_count_the_steps_of_a_round() -> None:
    seen = steady(rounds=1, clients=1)
    by_epochs = stolen(MSA(**QUICK), seen).victims[0]
    by_steps = stolen(MSA(**{**QUICK, "epochs": 9, "steps": 6}), seen).victims[0]  # 2 epochs of 3 batches of 32
    assert equal(by_epochs, by_steps)


def test_a_network_that_diverges_stays_what_it_was() -> None:
    found = stolen(MSA(network=IMITATION, lr=1e30, epochs=3, batch_size=32), steady(rounds=3, clients=1)).victims[0]
    assert found.status in ("diverged", "refused")
    assert "lower lr" in found.reason


def test_without_history_only_the_last_weights_are_kept() -> None:
    found = stolen(MSA(history=False, **QUICK), steady(rounds=3, clients=1)).victims[0]
    assert found.history == ()
    assert equal(found, stolen(MSA(**QUICK), steady(rounds=3, clients=1)).victims[0])


# --- bad input ----------------------------------------------------------------------------------------------------


def test_an_empty_history_is_refused() -> None:
    with pytest.raises(RefusedError, match="no history"):
        stolen(MSA(**QUICK), transcript([{}]))
    with pytest.raises(RefusedError, match="no rounds: an empty history"):
        stolen(MSA(**QUICK), transcript([]))


def test_where_nobody_can_be_imitated_it_is_an_error_and_not_a_list_of_refusals() -> None:
    half = torch.arange(0, PUBLIC, 2)
    seen = transcript([{name: predictions(0, index=half + t) for name in "abc"} for t in range(2)])
    with pytest.raises(RefusedError, match=r"^a: rounds 1 and 2 .* different public examples .*\(2 more cannot"):
        stolen(AdaMSA(**QUICK), seen)


def test_a_network_with_other_outputs_is_refused() -> None:
    own = steady().with_model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 7)))
    with pytest.raises(RefusedError, match=r"\(7,\) numbers .* 4 classes"):
        stolen(MSA(network="federation", epochs=1), own)


def test_the_network_of_the_federation_has_a_name_that_toml_can_write() -> None:
    assert MSA(network=None).network == "federation"
    assert resolved(MSA(network=None))["network"] == "federation"
    assert MSA(network="mlp").network == {"name": "mlp"}
    assert MSA(network="federation").model(steady().setup) == steady().setup.model


@pytest.mark.parametrize(
    ("network", "path", "rule"),
    [
        ({"name": "nonsense"}, ("network", "name"), "must be one of lenet"),
        ({"hidden": 3}, ("network", "name"), "must be one of lenet"),
        ({"name": "mlp", "hidden": 0}, ("network", "hidden"), "greater than 0"),
        ({"name": "mlp", "hiden": 3}, ("network", "hiden"), "no argument of mlp; `fedleak show models mlp`"),
        (3, ("network",), "must be a table"),
    ],
)
def test_a_wrong_network_is_named_by_its_path(network: Any, path: tuple[str, ...], rule: str) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        MSA(network=network)
    (entry,) = caught.value.errors()
    assert entry["loc"] == path
    assert rule in entry["msg"]


def test_without_a_public_set_it_is_refused() -> None:
    with pytest.raises(RefusedError, match="no public set"):
        stolen(MSA(**QUICK), without_public(transcript([{"a": predictions(0)}])))


def test_public_pictures_that_are_not_numbers_are_refused_and_not_called_divergence() -> None:
    with pytest.raises(RefusedError, match="public set: its pictures hold numbers that are not finite"):
        stolen(MSA(**QUICK), transcript([{"a": predictions(0)}], images() * float("nan")))


@pytest.mark.parametrize(
    "given",
    [
        {"network": {"name": "nonsense"}},
        {"network": {"name": "mlp", "hidden": 0}},
        {"network": {"name": "mlp", "nonsense": 1}},
        {"round": 0},
        {"lr": 0.0},
        {"epochs": 0},
        {"T0": -1},
        {"w0": 0.0},
    ],
)
def test_senseless_settings_are_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError, match=next(iter(given))):
        AdaMSA(**given)


def test_presets_fill_in_what_is_not_given() -> None:
    assert AdaMSA(preset="paper").lr == 0.01
    assert AdaMSA(preset="paper_open").batch_size == 256
    assert AdaMSA(preset="paper", lr=0.001).lr == 0.001
    assert (AdaMSA().T0, AdaMSA().w0) == (3, 0.5)
    assert configure(AdaMSA, resolved(AdaMSA(preset="paper"))) == AdaMSA(preset="paper")
