"""What cannot be used is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from logit_parts import CLASSES, LogitScene, stage_logits

from fedleak.attacks.logits.observed import read_round, read_scene
from fedleak.attacks.logits.tbi import TBI
from fedleak.errors import KnowledgeError, RefusedError
from fedleak.types import Gradients, Message, PublicSet, Round, Transcript

SCENE = stage_logits()
PUBLIC = SCENE.public()
COUNT = len(PUBLIC)


def attack(seen: Transcript, **fields: object) -> None:
    TBI(width=0.005, steps=1, **fields)(seen, rng=torch.Generator().manual_seed(0))


def values(scene: LogitScene = SCENE) -> torch.Tensor:
    return scene.transcript.rounds[0].received[0].payload.values


WRONG: dict[str, tuple[Callable[[], Transcript], str]] = {
    "too few rows": (lambda: SCENE.rounds_with(values=values()[:-1]), "one row per picture"),
    "too few columns": (lambda: SCENE.rounds_with(values=values()[:, 1:]), f"{CLASSES} classes"),
    "pictures beyond the public set": (lambda: SCENE.rounds_with(index=torch.arange(COUNT) + 1), "public set"),
    "a picture twice": (lambda: SCENE.rounds_with(index=torch.zeros(COUNT, dtype=torch.long)), "two predictions"),
    "not finite": (lambda: SCENE.rounds_with(values=values() * float("nan")), "not finite"),
    "in a later round": (lambda: SCENE.rounds_with(at=1, values=values()[:-1]), "round 2, client-0"),
    "no probabilities": (lambda: SCENE.rounds_with(scale="probabilities"), "renormalise=true"),
    "a sum of two": (
        lambda: SCENE.rounds_with(scale="probabilities", values=2 * torch.softmax(values(), 1)),
        "1 away from one",
    ),
    "no public set": (lambda: SCENE.changed(public=None), "holds none"),
    "an empty public set": (lambda: SCENE.changed(public=PublicSet(torch.zeros(0, 1, 8, 8))), "n > 0"),
    "public pictures of another size": (lambda: SCENE.changed(public=PublicSet(torch.zeros(3, 1, 9, 8))), "expected"),
    "public pictures that are not finite": (
        lambda: SCENE.changed(public=PublicSet(torch.full((3, 1, 8, 8), float("inf")))),
        "not finite",
    ),
    "too few public labels": (lambda: SCENE.changed(public=replace(PUBLIC, labels=torch.zeros(3))), "labels of"),
    "no D_0": (
        lambda: SCENE.changed(public=replace(PUBLIC, domains=torch.ones(COUNT, dtype=torch.long))),
        "no picture is of the private",
    ),
    "a third domain": (
        lambda: SCENE.changed(public=replace(PUBLIC, domains=torch.full((COUNT,), 2))),
        "one 0 .* or 1",
    ),
    "no target": (lambda: SCENE.changed(disclosed={"target_labels": []}), "at least one label"),
    "a target that is no class": (lambda: SCENE.changed(disclosed={"target_labels": [0, CLASSES]}), "is no class"),
    "a target that is no number": (lambda: SCENE.changed(disclosed={"target_labels": ["a"]}), "is no class"),
    "a target twice": (lambda: SCENE.changed(disclosed={"target_labels": [1, 1]}), "twice"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_used_is_refused_with_the_reason(what: str) -> None:
    made, reason = WRONG[what]
    with pytest.raises(RefusedError, match=reason):
        attack(made())


def test_the_target_labels_must_be_disclosed() -> None:
    with pytest.raises(KnowledgeError, match="target_labels"):
        attack(SCENE.changed(disclosed={}))


def test_gradients_are_not_predictions() -> None:
    sent = Message("client-0", Gradients({"w": torch.zeros(1)}))
    with pytest.raises(RefusedError, match="predictions"):
        attack(replace(SCENE.transcript, rounds=[Round(1, None, (sent,))]))


def test_a_round_without_messages_and_a_sender_twice_are_refused() -> None:
    scene = read_scene(SCENE.transcript.setup)
    with pytest.raises(RefusedError, match="no client sent"):
        read_round(Round(1, None, ()), scene)
    first = SCENE.transcript.rounds[0].received[0]
    with pytest.raises(RefusedError, match="two messages"):
        read_round(Round(1, None, (first, first)), scene)


def test_from_probabilities_logarithms_are_read() -> None:
    """softmax(log p / tau) does not depend on what a softmax has taken away."""
    logits, chances = stage_logits(), stage_logits(scale="probabilities")
    scene = read_scene(logits.transcript.setup)
    one, other = (read_round(s.transcript.rounds[0], scene).clients["client-0"].logits for s in (logits, chances))
    assert torch.allclose(torch.softmax(one / 3, 1), torch.softmax(other / 3, 1), atol=1e-5)


def test_scores_that_do_not_sum_to_one_can_be_divided() -> None:
    chances = torch.softmax(values(), 1)
    noisy = SCENE.rounds_with(scale="probabilities", values=3 * chances)
    scene = read_scene(noisy.setup)
    found = read_round(noisy.rounds[0], scene, renormalise=True).clients["client-0"].logits
    assert torch.allclose(found, chances.log(), atol=1e-4)
    nothing = SCENE.rounds_with(scale="probabilities", values=-chances)
    found = read_round(nothing.rounds[0], scene, renormalise=True).clients["client-0"].logits
    assert torch.allclose(found.exp(), torch.full_like(found, 1 / CLASSES))


def test_pictures_are_moved_to_the_range_of_tanh_and_domains_told_apart() -> None:
    scene = read_scene(SCENE.transcript.setup)
    assert torch.allclose((scene.pictures.permute(0, 3, 1, 2) + 1) / 2, PUBLIC.inputs, atol=1e-6)
    assert scene.picture == (1, 8, 8)
    assert PUBLIC.domains is not None
    assert torch.equal(scene.clean, torch.nonzero(PUBLIC.domains == 0).flatten())
    assert len(scene.clean) + len(scene.other) == COUNT
    one_domain = read_scene(SCENE.changed(public=replace(PUBLIC, domains=None)).setup)
    assert len(one_domain.clean) == COUNT


def test_answers_on_a_part_of_the_public_set_are_found_by_position() -> None:
    """FedMD's alignment subset."""
    chosen = torch.tensor([5, 2, 40])
    part = SCENE.rounds_with(index=chosen, values=values()[chosen])
    scene = read_scene(part.setup)
    seen = read_round(part.rounds[0], scene)
    who = list(seen.clients.values())
    assert seen.answered(scene.clean, who, COUNT).tolist() == [2, 5, 40]
    assert torch.equal(seen.clients["client-0"].at(torch.tensor([2, 40]), COUNT), values()[[2, 40]])
    with pytest.raises(RefusedError, match=r"answered by all of 2 models.*\(alignment\), or .* \(round=\.\.\.\)"):
        seen.answered(torch.tensor([7]), who, COUNT)
