"""The logit protocols: their options, their defenses, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pydantic
import pytest
import torch
from federation_parts import CLASSES, LOGIT, SHAPE, everything, problem, quick, said

from fedleak.components import configure
from fedleak.defenses import DPSGD, CrossDomain, Gaussian, OneShot, Plan, chain, identity
from fedleak.defenses.base import Context
from fedleak.errors import DataError, FedleakError, RefusedError, ShapeError
from fedleak.federation import DSFL, FedGEMS, FedMD
from fedleak.federation.logits.client import Clients
from fedleak.learning.functional import Network
from fedleak.models import build_model
from fedleak.seeding import Seeds
from fedleak.types import Examples, Predictions, PublicSet

# --- options ------------------------------------------------------------------------------------------------------


def test_alignment_draws_other_public_examples_each_round() -> None:
    for name in LOGIT:
        run = quick(name, alignment=7)(problem(), identity, Seeds(8))
        drawn = []
        for r in run.transcript.rounds:
            assert r.server is not None
            index = said(r).index
            assert len(torch.unique(index)) == 7
            assert torch.equal(index, index.sort().values)
            assert torch.equal(r.server.index, index)
            assert said(r).values.shape == r.server.values.shape == (7, CLASSES)
            drawn.append(tuple(index.tolist()))
        assert len(set(drawn)) == 3


def test_clients_may_have_different_models() -> None:
    tables = ({"name": "mlp", "hidden": 6}, {"name": "cnn", "widths": [2, 3], "hidden": 5})
    case = problem([0, 1, 0], [2, 3], [1, 2, 3])
    mixed = quick("fedmd", client_models=tables, server_model={"name": "pli_cnn", "channels": 2})
    run = mixed(case, identity, Seeds(9))
    assert run.transcript.setup.model.name == "pli_cnn"
    groups = Clients(case, mixed, chain(), Seeds(9), "cpu")
    assert [len(rows) for rows in groups.predict_own()] == [3, 2, 3]
    # A client's first upload without public training depends on nothing but itself: compare with all alike.
    settings = {"transfer_epochs": 0, "server_epochs": 0}
    one = quick("fedmd", client_models=tables, **settings)(case, identity, Seeds(9)).transcript.round(1)
    alike = quick("fedmd", **settings)(case, identity, Seeds(9)).transcript.round(1)
    assert torch.allclose(said(one, 0).values, said(alike, 0).values, atol=1e-6)
    assert torch.allclose(said(one, 2).values, said(alike, 2).values, atol=1e-6)
    assert not torch.allclose(said(one, 1).values, said(alike, 1).values, atol=1e-3)
    assert one.server is None


def test_one_client_digests_its_own_predictions_only_if_told_to() -> None:
    case = problem([0, 1, 2, 3])
    kept, skipped = (quick("fedmd", digest_alone=how)(case, identity, Seeds(10)) for how in (True, False))
    assert torch.equal(said(kept.transcript.round(1)).values, said(skipped.transcript.round(1)).values)
    assert not torch.equal(said(kept.transcript.round(2)).values, said(skipped.transcript.round(2)).values)


def test_fedmd_without_public_labels_never_looks_at_them() -> None:
    case = problem()
    assert case.public is not None
    protocol = quick("fedmd", preset="adamsa", server_epochs=1)
    with_labels = protocol(case, identity, Seeds(11))
    without = protocol(replace(case, public=replace(case.public, labels=None)), identity, Seeds(11))
    assert all(torch.equal(a, b) for a, b in zip(everything(with_labels), everything(without), strict=True))
    dsfl = quick("dsfl")
    pair = [dsfl(c, identity, Seeds(11)) for c in (case, replace(case, public=replace(case.public, labels=None)))]
    assert all(torch.equal(a, b) for a, b in zip(everything(pair[0]), everything(pair[1]), strict=True))


def test_the_orders_of_fedgems() -> None:
    """In the paper's order the server begins with nothing but the labels; in the released one clients speak first."""
    case = problem()
    paper, released = (quick("fedgems", order=order)(case, identity, Seeds(12)) for order in ("paper", "released"))
    swapped = replace(
        case, clients={**case.clients, "client-1": replace(case.clients["client-1"], labels=torch.tensor([3, 2, 3]))}
    )
    first = quick("fedgems", order="paper")(swapped, identity, Seeds(12))
    assert paper.transcript.round(1).server is not None
    assert first.transcript.round(1).server is not None
    assert torch.equal(everything(first)[2], everything(paper)[2]), "what clients hold changed the server's first round"
    heard = quick("fedgems", order="released")(swapped, identity, Seeds(12))
    assert not torch.equal(everything(heard)[1], everything(released)[1])


def test_presets_fill_in_and_given_values_win() -> None:
    assert FedMD().weight_decay == 0.0
    assert FedMD(preset="released").weight_decay == 1e-4
    assert not FedMD(preset="released").digest_alone
    adamsa = FedMD(preset="adamsa", lr=0.001)
    assert (adamsa.lr, adamsa.rounds, adamsa.batch_size, adamsa.public_batch_size) == (0.001, 10, 10, 128)
    assert adamsa.uploads == "probabilities"
    assert FedGEMS(preset="released").order == "released"
    assert DSFL(preset="released").uploads == "probabilities"
    assert DSFL().uploads == "logits"


def test_recording_stops_at_the_attacked_round() -> None:
    run = quick("fedmd", record="attacked", attacked_round=2)(problem(), identity, Seeds(13))
    assert len(run.transcript.rounds) == 2
    assert {index for index, _ in run.truth.used} == {1, 2}
    assert len(run.truth.utility) == 4


# --- defenses -----------------------------------------------------------------------------------------------------


def test_noise_is_on_what_is_sent_fresh_each_round_and_in_what_all_learn_from() -> None:
    case = problem()
    plain, noisy = (quick("fedmd")(case, defense, Seeds(14)) for defense in (identity, Gaussian(sigma=0.5)))
    gap = said(noisy.transcript.round(1)).values - said(plain.transcript.round(1)).values
    assert 0.3 < float(gap.std()) < 0.7
    first = noisy.transcript.round(1)
    assert isinstance(first.broadcast, Predictions)
    mean = torch.stack([said(first, 0).values, said(first, 1).values]).mean(dim=0)
    assert torch.allclose(first.broadcast.values, mean, atol=1e-6)
    assert not torch.allclose(gap, said(first, 1).values - said(plain.transcript.round(1), 1).values, atol=1e-2)


def test_one_shot_and_cross_domain_change_the_plan() -> None:
    case = problem()
    run = quick("fedmd", attacked_round=2)(case, chain(OneShot(), CrossDomain()), Seeds(15))
    assert len(run.transcript.rounds) == 1
    assert len(run.truth.utility) == 2
    assert run.transcript.setup.public is not None
    assert len(run.transcript.setup.public) == 8
    assert said(run.transcript.round(1)).values.shape == (8, CLASSES)
    assert run.truth.public is run.transcript.setup.public


class Looks:
    """A defense that only remembers what it is shown."""

    paper, revision, stage = "", 1, "message"

    def __init__(self) -> None:
        self.seen: list[Context] = []

    def apply(self, value: Any, context: Context, rng: torch.Generator) -> Any:
        self.seen.append(context)
        return value

    def after(self, plan: Any) -> Any:
        return plan

    def guarantee(self, plan: Any) -> Any:
        raise AssertionError


def test_a_defense_is_shown_the_clients_own_previous_model() -> None:
    case, looks = problem(), Looks()
    run = quick("fedmd")(case, looks, Seeds(16))
    assert case.public is not None
    assert [(c.round, c.client) for c in looks.seen[:3]] == [(1, "client-0"), (1, "client-1"), (2, "client-0")]
    untrained = build_model(case.model, SHAPE, CLASSES, Seeds(16).generator("model", "client-0"))
    first, second = looks.seen[0], looks.seen[2]
    assert first.network is not None
    assert first.previous is not None
    assert second.network is not None
    assert second.previous is not None
    assert torch.allclose(first.network(first.previous, case.public.inputs), untrained(case.public.inputs), atol=1e-6)
    before = said(run.transcript.round(1)).values
    assert torch.allclose(second.network(second.previous, case.public.inputs), before, atol=1e-6)
    assert isinstance(second.network, Network)
    assert second.public is case.public
    assert (second.samples, second.rounds) == (5, 3)


class Brightens(Looks):
    stage = "examples"

    def apply(self, value: Any, context: Context, rng: torch.Generator) -> Any:
        return Examples(value.inputs + 1, value.labels)


def test_a_defense_of_the_examples_changes_what_clients_train_on() -> None:
    case = problem()
    one, two = (quick("dsfl")(case, defense, Seeds(17)) for defense in (identity, Brightens()))
    assert not torch.allclose(said(one.transcript.round(1)).values, said(two.transcript.round(1)).values, atol=1e-3)
    assert torch.equal(two.truth.private.inputs, one.truth.private.inputs)


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOGIT)
def test_a_federation_without_a_public_set_is_refused(name: str) -> None:
    with pytest.raises(RefusedError, match="give the data a public set"):
        quick(name)(problem(public=None), identity, Seeds(0))


def test_public_sets_that_do_not_fit_are_refused() -> None:
    case = problem()
    assert case.public is not None
    unlabelled = replace(case, public=replace(case.public, labels=None))
    for name in ("fedmd", "fedgems"):
        with pytest.raises(RefusedError, match="labels of the public set, which has none"):
            quick(name)(unlabelled, identity, Seeds(0))
    with pytest.raises(DataError, match=r"labels of shape \(19,\) and torch.int64 for 20 images"):
        quick("fedmd")(replace(case, public=replace(case.public, labels=torch.arange(19) % 4)), identity, Seeds(0))
    with pytest.raises(DataError, match=r"0 \.\. 3"):
        quick("fedmd")(replace(case, public=replace(case.public, labels=torch.arange(20))), identity, Seeds(0))
    with pytest.raises(ShapeError, match=r"\(1, 5, 6\)"):
        quick("dsfl")(replace(case, public=PublicSet(case.public.inputs[:, :, 1:])), identity, Seeds(0))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"domains": torch.zeros(19)}, r"domains of shape \(19,\) for 20 images"),
        ({"domains": torch.arange(20) % 3}, r"domains \[2\]; they must be 0 .* or 1"),
        ({"labels": torch.arange(20) % 4 + 0.0}, r"torch\.float32 for 20 images; give one int64 number for each"),
        ({"labels": (torch.arange(20) % 4).int()}, r"torch\.int32 for 20 images; give one int64 number for each"),
        ({"labels": torch.eye(4)[torch.arange(20) % 4].long()}, r"labels of shape \(20, 4\)"),
        ({"inputs": torch.full((20, *SHAPE), float("nan"))}, r"not finite numbers"),
        ({"inputs": torch.zeros(20, *SHAPE, dtype=torch.uint8)}, r"pixels of torch\.uint8; they must be float32"),
    ],
)
@pytest.mark.parametrize("name", LOGIT)
def test_a_public_set_that_no_attack_could_read_is_refused_before_anything_is_trained(
    name: str, changes: dict[str, Any], words: str
) -> None:
    case = problem()
    assert case.public is not None
    with pytest.raises(FedleakError, match=words):
        quick(name)(replace(case, public=replace(case.public, **changes)), identity, Seeds(0))


@pytest.mark.parametrize("name", LOGIT)
def test_private_labels_that_no_client_holds_are_refused(name: str) -> None:
    with pytest.raises(DataError, match=r"targets: no client holds an example of \[3\]"):
        quick(name)(problem([0, 1], [2, 2], targets=(0, 1, 3)), identity, Seeds(0))


def test_defenses_that_cannot_work_here_are_refused() -> None:
    with pytest.raises(RefusedError, match="gradients of single examples"):
        quick("fedmd")(problem(), DPSGD(noise_multiplier=1.0, max_grad_norm=1.0), Seeds(0))
    plan = Plan(rounds=2, epochs=1, predictions="probabilities", examples=5, dimension=20)
    assert chain(DPSGD(noise_multiplier=1.0, max_grad_norm=1.0)).guarantee(plan).kind == "none"
    assert chain(DPSGD(noise_multiplier=1.0, max_grad_norm=1.0), Gaussian(sigma=9.0)).guarantee(plan).kind == "dp"

    class Shortens(Looks):
        def apply(self, value: Any, context: Context, rng: torch.Generator) -> Any:
            return replace(value, values=value.values[1:])

    with pytest.raises(ShapeError, match="client-0: a defense must leave predictions of"):
        quick("fedmd")(problem(), Shortens(), Seeds(0))

    class Renames(Looks):
        def apply(self, value: Any, context: Context, rng: torch.Generator) -> Any:
            return replace(value, values=torch.softmax(value.values, dim=-1), scale="probabilities")

    class Reverses(Looks):
        def apply(self, value: Any, context: Context, rng: torch.Generator) -> Any:
            return replace(value, index=value.index.flip(0))

    # A proof is made from what the messages hold: noise on logits would count as noise on probabilities.
    for changes, found in ((Renames(), "found probabilities"), (Reverses(), "found logits")):
        with pytest.raises(RefusedError, match=f"client-0: a defense must leave logits .* {found}"):
            quick("fedmd")(problem(), changes, Seeds(0))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"client_models": [{"name": "nonsense"}]}, "nonsense"),
        ({"client_models": []}, "at least one model"),
        ({"client_models": [{"name": "mlp"}, {"name": "mlp", "hiden": 3}]}, r"1\.hiden\s+no argument of mlp"),
        ({"client_models": [{"name": "mlp", "hidden": -3}]}, r"0\.hidden\s+Input should be greater"),
        ({"server_model": {"name": "pli_cnn", "chanels": 3}}, r"server_model\.chanels\s+no argument of pli_cnn"),
        ({"server_model": {"hidden": 3}}, r"server_model\.name\s+must be one of"),
        ({"rounds": 2, "attacked_round": 3}, "one of the 2 rounds"),
        ({"preset": "nonsense"}, "preset"),
        ({"disclose": ["batch_labels"]}, "disclose"),
        ({"alignment": 0}, "alignment"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=words):
        configure(FedMD, settings)


def test_an_empty_test_set_gives_no_numbers() -> None:
    case = problem(test=Examples(torch.zeros(0, *SHAPE), torch.zeros(0, dtype=torch.int64)))
    run = quick("dsfl")(case, identity, Seeds(0))
    assert all(value != value for value in run.truth.utility)
    assert len(run.truth.correct) == 0
