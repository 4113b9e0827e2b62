"""What a row says its defense proves: in the deployment as it was, and for what was sent alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedleak.audit.provenance import provenance
from fedleak.data.public import PublicSpec
from fedleak.defenses import DPSGD, Clip, Defense, Gaussian, OneShot, Plan, chain
from fedleak.federation import FedAvg, FedMD, FedSGD
from fedleak.federation.base import Problem
from fedleak.seeding import Seeds
from fedleak.types import Examples, ModelSpec, PublicSet


def problem() -> Problem:
    draw = torch.Generator().manual_seed(5)
    images = torch.rand(4, 1, 6, 6, generator=draw)
    own = Examples(images, torch.tensor([0, 1, 2, 1]))
    return Problem({"one": own}, own, ModelSpec("mlp", {"hidden": 5}), (1, 6, 6), 3, public=PublicSet(images))


def said(protocol: Any, *defenses: Defense, declared: Any = None, public: PublicSpec | None = None) -> dict[str, Any]:
    """The provenance of a federation that ran under `protocol` and is declared as `declared`."""
    recording = protocol(problem(), chain(*defenses), Seeds(0))
    point = SimpleNamespace(protocol=declared or protocol, data=SimpleNamespace(public=public))
    arm = SimpleNamespace(defenses=defenses)
    job: Any = SimpleNamespace(key="", split={}, point=point, arm=arm)
    return provenance(job, recording.transcript, "cpu", {})


PRIVATE = DPSGD(noise_multiplier=3.0, max_grad_norm=1.0)


@pytest.mark.parametrize(
    ("protocol", "uses"), [(FedSGD(rounds=2), 2), (FedAvg(rounds=2, epochs=3, batch_size=2), 6)], ids=["sgd", "avg"]
)
def test_an_example_is_used_once_a_local_epoch(protocol: Any, uses: int) -> None:
    found = said(protocol, PRIVATE)["guarantee"]
    assert found["epsilon"] == PRIVATE.guarantee(Plan(rounds=uses, epochs=1)).epsilon
    assert "not covered" not in found["statement"]


def test_somebody_elses_protocol_that_does_not_say_its_epochs_gets_no_proof_from_one_epoch() -> None:
    theirs = SimpleNamespace(rounds=1, passes=50)
    found = said(FedSGD(), PRIVATE, declared=theirs)["guarantee"]
    assert (found["kind"], found["epsilon"]) == ("none", None)


def test_rounds_that_a_protocol_does_not_name_are_those_that_were_seen() -> None:
    found = said(FedAvg(rounds=3, record="all"), Clip(norm=1.0), Gaussian(sigma=9.0), declared=SimpleNamespace())
    assert found["rounds"] == 3
    assert "over 3 round(s)" in found["guarantee"]["statement"]


def test_what_the_server_is_told_about_the_data_is_said_to_be_outside_the_proof() -> None:
    protocol = FedAvg(disclose=("samples", "lr", "label_counts", "batch_labels"))
    assert said(protocol, Clip(norm=1.0), Gaussian(sigma=9.0))["guarantee"]["statement"].endswith(
        "; not covered: what the server is assumed to know besides (how often each client has each label, the labels "
        "of every batch)"
    )
    assert "besides" not in said(protocol, Gaussian(sigma=9.0))["guarantee"]["statement"], "nothing is proven there"


def test_one_shot_is_one_round_in_the_proof_and_beside_it() -> None:
    protocol = FedMD(preset="adamsa", rounds=4, epochs=1, first_epochs=1)
    found = said(protocol, OneShot(), Gaussian(sigma=20.0))
    assert found["rounds"] == 1
    assert found["guarantee"]["epsilon"] == pytest.approx(
        Gaussian(sigma=20.0).guarantee(Plan(predictions="probabilities", examples=4)).epsilon
    )


@pytest.mark.parametrize(
    ("public", "copies"),
    [
        (PublicSpec(targets=2), True),
        (PublicSpec(targets=2, domain="mask"), True),
        (PublicSpec(targets=2, drop_twins=True), False),
        (PublicSpec(targets=2, domain="blur"), False),
        (PublicSpec(name="mnist", alpha=0.5), False),
    ],
)
def test_copies_of_private_images_in_the_public_set_are_said_to_be_outside_the_proof(
    public: PublicSpec, copies: bool
) -> None:
    protocol = FedMD(preset="adamsa", rounds=1, epochs=1, first_epochs=1)
    statement = said(protocol, Gaussian(sigma=20.0), public=public)["guarantee"]["statement"]
    assert ("not covered: the masked copies of private images in the public set" in statement) is copies
    assert "masked copies" not in said(protocol, public=public)["guarantee"]["statement"], "nothing is proven there"
