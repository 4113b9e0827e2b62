"""Class inversion: one picture per class and client, refined from round to round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import grad
from torch.nn import functional as F

from fedleak.attacks.inversion.class_inversion import ClassInversion
from fedleak.errors import KnowledgeError, RefusedError
from fedleak.learning.functional import Network, cross_entropy
from fedleak.models import build_model
from fedleak.types import Message, ModelSpec, Reconstruction, Round, Setup, Transcript, Weights

CLASSES, SHAPE = 6, (1, 8, 8)
MINE = {"a": [1, 4], "b": [0, 2, 5]}


def class_pictures() -> Tensor:
    """One smooth picture per class; a client's images are that picture with a little noise."""
    rng = torch.Generator().manual_seed(5)
    return F.interpolate(torch.rand(CLASSES, 1, 3, 3, generator=rng), size=SHAPE[1:], mode="bilinear")


def federation(rounds: int = 3, absent: Sequence[tuple[int, str]] = ()) -> Transcript:
    """FedAvg by hand: each client holds four images of each of its classes and takes two steps of SGD in a round."""
    rng = torch.Generator().manual_seed(0)
    network = Network(build_model(ModelSpec("mlp"), SHAPE, CLASSES, rng))
    weights, seen = network.initial(), []
    data = {}
    for client, labels in MINE.items():
        y = torch.tensor(labels).repeat_interleave(4)
        data[client] = (class_pictures()[y] + 0.05 * torch.randn(len(y), *SHAPE, generator=rng), y)
    for index in range(1, rounds + 1):
        messages = []
        for client, (x, y) in data.items():
            if (index, client) in absent:
                continue
            own = dict(weights)
            for _ in range(2):
                step = grad(lambda w, x=x, y=y: cross_entropy(network(w, x), y))(own)
                own = {name: own[name] - 0.05 * step[name] for name in own}
            messages.append(Message(client, Weights(own), {"unique_labels": len(MINE[client])}))
        seen.append(Round(index, Weights(weights), tuple(messages)))
        sent = [m.payload.tensors for m in messages]
        weights = {name: torch.stack([one[name] for one in sent]).mean(dim=0) for name in weights}
    return Transcript(Setup(ModelSpec("mlp"), SHAPE, CLASSES), tuple(seen))


def attacked(seen: Transcript, **options: object) -> Reconstruction:
    return ClassInversion(**options)(seen, rng=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def found() -> Reconstruction:
    return attacked(federation())


def test_one_picture_per_class_with_its_label(found: Reconstruction) -> None:
    assert [v.sender for v in found.victims] == list(MINE)
    for victim in found.victims:
        assert victim.labels.tolist() == MINE[victim.sender]
        assert victim.inputs.shape == (len(MINE[victim.sender]), *SHAPE)
        assert victim.round == 3
        assert float(victim.inputs.min()) >= 0
        assert float(victim.inputs.max()) <= 1


def test_each_picture_looks_like_its_own_class(found: Reconstruction) -> None:
    """Its correlation with the picture of its class is larger than with any other class's picture."""
    pictures = class_pictures().flatten(1)
    for victim in found.victims:
        for picture, label in zip(victim.inputs.flatten(1), victim.labels.tolist(), strict=True):
            alike = [float(torch.corrcoef(torch.stack([picture, other]))[0, 1]) for other in pictures]
            assert alike.index(max(alike)) == label
            assert alike[label] > 0.5


def test_the_rounds_follow_one_another(found: Reconstruction) -> None:
    """Three rounds of 150 iterations; a round begins where the one before ended, far below a random start."""
    values = found.trace.objective
    assert values.shape == (2, 3 * 151)
    assert found.notes["rounds"] == 3
    assert (values[:, 151] < 0.5 * values[:, 0]).all()
    assert found.trace.snapshot_steps == (150, 301, 452)
    for victim, pictures in zip(found.victims, found.trace.snapshots, strict=True):
        assert pictures.shape == (3, *victim.inputs.shape)
        assert torch.equal(pictures[-1], victim.inputs)
        assert not torch.equal(pictures[0], pictures[1])


def test_a_warm_start_is_where_the_round_before_ended() -> None:
    """After no real step in round 2 the pictures are still those of round 1."""
    alone = attacked(federation(2), steps=1, lr=1e-9)
    assert alone.victims[0].round == 2
    again = attacked(replace(federation(2), rounds=federation(2).rounds[:1]), steps=1, lr=1e-9)
    torch.testing.assert_close(alone.victims[0].inputs, again.victims[0].inputs, rtol=0, atol=1e-6)


def test_labels_are_read_in_the_first_round_only() -> None:
    """Round 2 with a last layer turned upside down would give other labels; nobody looks."""
    seen = federation(2)
    second = seen.rounds[1]
    flipped = [
        replace(m, payload=Weights({k: 2 * second.broadcast.tensors[k] - v for k, v in m.payload.tensors.items()}))
        for m in second.received
    ]
    changed = replace(seen, rounds=(seen.rounds[0], replace(second, received=tuple(flipped))))
    assert [v.labels.tolist() for v in attacked(changed, steps=2).victims] == list(MINE.values())
    only = replace(seen, rounds=(replace(second, index=1, received=tuple(flipped)),))
    assert [v.labels.tolist() for v in attacked(only, steps=2).victims] != list(MINE.values())


def test_a_client_that_was_away_is_reported_at_its_last_round() -> None:
    found = attacked(federation(3, absent=[(1, "b"), (3, "a")]), steps=5)
    assert {v.sender: v.round for v in found.victims} == {"a": 2, "b": 3}
    assert [v.labels.tolist() for v in found.victims] == [MINE[v.sender] for v in found.victims]
    assert found.trace.objective.shape[0] == 2
    assert found.trace.objective[1, :6].isnan().all()
    pictures = dict(zip(MINE, found.trace.snapshots, strict=True))
    assert torch.equal(pictures["b"][0], pictures["b"][1])  # not seen in round 1: shown as it was first found
    assert torch.equal(pictures["a"][1], pictures["a"][2])  # away in round 3: as it was left


def test_labels_once_read_stay_even_where_a_later_round_has_fewer() -> None:
    seen = federation(2)
    fewer = tuple(replace(m, disclosed={"unique_labels": 1}) for m in seen.rounds[1].received)
    changed = replace(seen, rounds=(seen.rounds[0], replace(seen.rounds[1], received=fewer)))
    assert [v.labels.tolist() for v in attacked(changed, steps=2).victims] == list(MINE.values())


def test_an_update_that_cannot_be_used_leaves_a_client_where_the_round_before_left_it() -> None:
    seen = federation(2)
    second = seen.rounds[1]
    idle = replace(second.received[0], payload=Weights(dict(second.broadcast.tensors)))
    changed = replace(seen, rounds=(seen.rounds[0], replace(second, received=(idle, second.received[1]))))
    found = attacked(changed, steps=2)
    assert {v.sender: (v.round, v.status) for v in found.victims} == {"a": (1, "ok"), "b": (2, "ok")}


def test_the_last_attacked_round_can_be_chosen() -> None:
    seen = federation(3)
    assert {v.round for v in attacked(seen, round=2, steps=2).victims} == {2}
    with pytest.raises(RefusedError, match="rounds 1 to 3"):
        attacked(seen, round=4)


def test_what_it_must_be_told_is_named_for_any_round(scene: Callable) -> None:
    seen = federation(2)
    silent = replace(seen.rounds[1], received=tuple(replace(m, disclosed={}) for m in seen.rounds[1].received))
    with pytest.raises(KnowledgeError, match=r"needs unique_labels.*in round 2"):
        attacked(replace(seen, rounds=(seen.rounds[0], silent)))
