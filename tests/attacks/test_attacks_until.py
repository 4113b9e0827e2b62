"""Rounds that nobody saw: only what was broadcast at first and what a client sent later (dlm.txt section 5.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.func import grad

from fedleak.attacks import require
from fedleak.attacks.inversion.dlm import DLM
from fedleak.attacks.inversion.dlm_plus import DLMPlus
from fedleak.attacks.inversion.victims import attacked_round
from fedleak.errors import KnowledgeError, RefusedError
from fedleak.learning.functional import Network, cross_entropy
from fedleak.models import build_model
from fedleak.types import Message, Transcript, Weights


def lasting(scene: Callable, rounds: int = 3, lr: float = 0.01) -> tuple[Transcript, torch.Tensor]:
    """One client with one image trains on, round after round; what was broadcast in between is not kept."""
    made = scene((1,), sends="weights", lr=lr, dtype=torch.float64)
    setup, (first,) = made.transcript.setup, made.transcript.rounds
    network = Network(build_model(setup.model, setup.input_shape, setup.classes).double())
    weights, seen = dict(first.broadcast.tensors), []
    for index in range(1, rounds + 1):
        step = grad(lambda w: cross_entropy(network(w, made.images[0]), made.labels[0]))(weights)
        after = {name: weights[name] - lr * step[name] for name in weights}
        message = Message("client-0", Weights(after), {"samples": 1})
        hidden = None if index > 1 else Weights(weights)
        seen.append(replace(first, index=index, broadcast=hidden, received=(message,)))
        weights = after
    return replace(made.transcript, rounds=tuple(seen)), made.images[0]


@pytest.mark.parametrize("attack", [DLMPlus(steps=40, until=3), DLM(steps=40, until=3, gamma=40.0)])
def test_the_image_comes_back_over_missing_rounds(attack: DLM | DLMPlus, scene: Callable, psnr: Callable) -> None:
    seen, image = lasting(scene)
    (victim,) = attack(seen, rng=torch.Generator().manual_seed(0)).victims
    assert victim.round == 3
    assert psnr(victim.inputs, image) > 20


def test_the_update_is_between_the_first_broadcast_and_the_last_message(scene: Callable) -> None:
    seen, _ = lasting(scene)
    joined = attacked_round(seen, 1, -1)
    assert joined.broadcast is seen.rounds[0].broadcast
    assert joined.received == seen.rounds[2].received
    assert attacked_round(seen, 1, None) is seen.rounds[0]


@pytest.mark.parametrize(("until", "why"), [(4, "rounds 1 to 3"), (1, "later round"), (-3, "later round")])
def test_a_round_that_cannot_be_the_last_is_refused(until: int, why: str, scene: Callable) -> None:
    seen, _ = lasting(scene)
    with pytest.raises(RefusedError, match=why):
        DLMPlus(until=until, steps=1)(seen, rng=torch.Generator())


def test_gradients_of_a_later_round_are_refused(scene: Callable) -> None:
    first = scene((1,)).transcript
    seen = replace(first, rounds=(first.rounds[0], replace(first.rounds[0], index=2)))
    with pytest.raises(RefusedError, match="holds gradients, taken at its own weights"):
        DLMPlus(until=2, steps=1)(seen, rng=torch.Generator())


def test_knowledge_is_asked_of_the_messages_that_are_read(scene: Callable) -> None:
    seen, _ = lasting(scene)
    last = replace(seen.rounds[2], received=tuple(replace(m, disclosed={}) for m in seen.rounds[2].received))
    changed = replace(seen, rounds=(*seen.rounds[:2], last))
    require(DLMPlus(until=2), changed)
    with pytest.raises(KnowledgeError, match="round 3"):
        require(DLMPlus(until=3), changed)
