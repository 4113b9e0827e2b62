"""How far to believe a picture when nobody knows the truth: the arithmetic by hand, and how often it is wrong."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional as F

import fedleak
from fedleak.audit.confidence import AGREED_DB, UNEXPLAINED, compared, confidence, noise_instead
from fedleak.errors import RefusedError
from fedleak.types import (
    Gradients,
    Message,
    ModelSpec,
    Normalisation,
    Predictions,
    Reconstruction,
    RecoveredImages,
    Round,
    Setup,
    Transcript,
    Weights,
)


def found(*pictures: float, objective: float = 1.0, status: Any = "ok", reason: str = "") -> Reconstruction:
    """Grey pictures of one client."""
    inputs = torch.stack([torch.full((1, 2, 2), value) for value in pictures])
    return Reconstruction((RecoveredImages("a", 1, inputs, None, objective, status, reason),))


def test_the_start_that_agrees_least_counts_and_pictures_have_no_order() -> None:
    """By hand: 0.1 apart is 20 dB, 0.01 apart is 40 dB."""
    starts = [found(0.2, 0.8), found(0.79, 0.21), found(0.3, 0.9)]
    (one,) = compared(starts, [found(0.5, 0.5), found(0.5, 0.6)])
    assert one.agreement == pytest.approx((20.0, 20.0), abs=1e-3)
    (two,) = compared(starts[:2], [found(0.5, 0.5), found(0.49, 0.6)])
    assert two.agreement == pytest.approx((40.0, 40.0), abs=1e-3)
    assert two.null_agreement == pytest.approx(40.0, abs=1e-3), "the picture of noise that agrees best"
    (wild,) = compared([found(0.9), found(1.7)], [found(0.5), found(0.5)])
    assert wild.agreement == pytest.approx((20.0,), abs=1e-3), "what is seen is clipped to [0, 1]"


def test_belief_needs_an_explanation_and_agreement() -> None:
    null = [found(0.1, objective=10.0), found(0.9, objective=12.0)]
    near, far = 0.5 + 10 ** (-(AGREED_DB + 1) / 20), 0.5 + 10 ** (-(AGREED_DB - 1) / 20)
    for objective, other, sure in (
        (9.9 * UNEXPLAINED, near, True),
        (10.1 * UNEXPLAINED, near, False),
        (9.9 * UNEXPLAINED, far, False),
    ):
        starts = [found(0.5, objective=objective), found(other, objective=objective)]
        (one,) = compared(starts, null)
        assert one.believed == (sure,)
        assert one.unexplained == pytest.approx(objective / 10.0), "the better of the two nulls counts"


def test_the_first_start_is_shown_or_the_best() -> None:
    starts = [found(0.2, objective=2.0), found(0.4, objective=1.0)]
    (first,), (best,) = (compared(starts, starts, best=b) for b in (False, True))
    assert (first.objective, best.objective) == (2.0, 1.0)
    assert float(best.inputs.mean()) == pytest.approx(0.4)


def test_nothing_is_believed_of_a_search_that_failed() -> None:
    bad = found(0.2, objective=math.inf, status="diverged", reason="no start gave a finite objective")
    (one,) = compared([found(0.2), bad], [found(0.2), found(0.2)])
    assert (one.status, one.believed) == ("diverged", ())
    (unknown,) = compared([found(0.2), found(0.2)], [bad, bad])
    assert unknown.null_objective == math.inf
    assert unknown.null_agreement == -math.inf
    assert unknown.agreement == pytest.approx((120.0,)), "the starts agree"
    assert unknown.believed == (False,), "but nobody knows what noise would have given"
    assert math.isnan(unknown.unexplained)
    (one,) = compared([found(0.2), found(0.2)], [found(0.2, objective=5.0), bad])
    assert (one.null_objective, one.null_agreement) == (5.0, -math.inf), "a single search on noise agrees with nobody"


def test_agreement_needs_two_starts() -> None:
    with pytest.raises(RefusedError, match="at least two different starts"):
        confidence(Transcript(Setup(ModelSpec("m"), (1, 2, 2), 2), ()), lambda seen, seed: found(0.5), seeds=(1, 1))


def test_the_attack_runs_from_every_seed_on_the_recording_and_on_its_null() -> None:
    recording = Transcript(Setup(ModelSpec("m"), (1, 2, 2), 2), ())
    calls = []

    def run(seen: Transcript, seed: int) -> Reconstruction:
        calls.append((seen is recording, seed))
        return found(0.5, objective=float(seed) if seen is recording else 100.0 + seed)

    (one,) = confidence(recording, run, seeds=(3, 1))
    assert calls == [(True, 3), (True, 1), (False, 3), (False, 1)]
    assert (one.objective, one.null_objective, one.believed) == (1.0, 101.0, (True,))


def test_the_null_of_weights_is_the_broadcast_and_noise_as_long_as_the_update() -> None:
    start = {"w": torch.full((40, 50), 3.0), "b": torch.ones(3)}
    sent = Weights({"w": start["w"] + 0.1, "b": start["b"], "own": torch.ones(2)}, {"mean": torch.ones(4)})
    logits = Predictions(torch.rand(2, 3), "logits", torch.arange(2))
    messages = (Message("a", sent), Message("b", sent), Message("c", logits))
    seen = Transcript(Setup(ModelSpec("m"), (1, 2, 2), 2), (Round(1, Weights(start), messages),))
    first, second, third = (message.payload for message in noise_instead(seen).round(1).received)
    assert isinstance(first, Weights)
    assert isinstance(second, Weights)
    made = (first.tensors["w"] - start["w"]).flatten()
    assert float(made.norm()) == pytest.approx(0.1 * math.sqrt(2000), rel=1e-4)
    assert abs(float(made.mean())) < 0.01, "4 deviations of the mean of 2000 numbers of size 0.1"
    assert torch.equal(first.tensors["b"], start["b"])
    assert torch.equal(first.tensors["own"], torch.ones(2)), "nobody can say how long an update without a start is"
    assert torch.equal(first.buffers["mean"], torch.ones(4))
    assert not torch.equal(second.tensors["w"], first.tensors["w"]), "every client's own noise"
    assert third is logits


def test_the_null_of_gradients_is_noise_as_long_as_they_are() -> None:
    sent = Gradients({"w": torch.full((40, 50), 0.1), "b": torch.zeros(3), "n": torch.ones(2, dtype=torch.int8)})
    start = Weights({name: torch.ones_like(value) for name, value in sent.tensors.items()})
    seen = Transcript(Setup(ModelSpec("m"), (1, 2, 2), 2), (Round(1, start, (Message("a", sent),)),))
    (null,) = (message.payload.tensors for message in noise_instead(seen).round(1).received)  # type: ignore[union-attr]
    assert float(null["w"].norm()) == pytest.approx(float(sent.tensors["w"].norm()), rel=1e-5)
    assert abs(float(F.cosine_similarity(null["w"].flatten(), sent.tensors["w"].flatten(), dim=0))) < 0.1
    assert torch.equal(null["b"], torch.zeros(3))
    assert torch.equal(null["n"], sent.tensors["n"]), "whole numbers stay"
    again = noise_instead(seen).round(1).received[0].payload
    assert torch.equal(null["w"], again.tensors["w"])  # type: ignore[union-attr]


# --- calibration --------------------------------------------------------------------------------------------------


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, 2, 2), nn.Tanh(), nn.Conv2d(8, 16, 5, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(64, 10)
    )


def recorded(pictures: Tensor, each: int, seed: int, *, noise: float = 0.0, epochs: int = 1) -> Transcript:
    """Clients with `each` pictures; `noise` on the update as a multiple of its length; inf: nothing else."""
    torch.manual_seed(seed)
    start = net().state_dict()
    rng = torch.Generator().manual_seed(seed + 7)
    messages = []
    for client, own in enumerate(pictures.split(each)):
        module = net()
        module.load_state_dict(start)
        labels = torch.randint(0, 10, (each,), generator=rng)
        for _ in range(epochs):
            module.zero_grad()
            F.cross_entropy(module((own - 0.5) / 0.2), labels).backward()
            torch.optim.SGD(module.parameters(), lr=0.1).step()
        sent = {}
        for name, value in module.state_dict().items():
            update, drawn = value - start[name], torch.randn(value.shape, generator=rng)
            drawn = drawn * update.norm() / drawn.norm()
            sent[name] = start[name] + (drawn if math.isinf(noise) else update + noise * drawn)
        messages.append(Message(f"c{client}", Weights(sent), {"samples": each}))
    normal = Normalisation((0.5,), (0.2,))
    setup = Setup(ModelSpec("own", factory=net), (1, 8, 8), 10, normalisation=normal)
    return Transcript(setup, (Round(1, Weights(dict(start)), tuple(messages)),))


def decibels(pictures: Tensor, truth: Tensor) -> list[float]:
    squares = (pictures.clamp(0, 1)[:, None] - truth[None]).flatten(2).square().mean(-1)
    rows, columns = linear_sum_assignment(squares.numpy())
    return [-10 * math.log10(max(float(one), 1e-12)) for one in squares[rows, columns]]


@pytest.mark.slow
def test_belief_is_calibrated_on_seeds_that_did_not_choose_it() -> None:
    """Pictures under 20 dB are believed in at most 1 of 20 cases; noise never; plain updates of one picture mostly."""

    def run(seen: Transcript, seed: int) -> Any:
        return fedleak.attack(seen, "dlm_plus", seed=seed, device="cpu", steps=30, restarts=0)

    wrong: list[bool] = []
    plain: list[bool] = []
    nothing: list[bool] = []
    cases = ((1, 0.0, 1), (1, math.inf, 1), (2, 0.3, 1), (2, 1.0, 1), (2, 0.0, 10), (1, 0.0, 40))
    for number, (each, noise, epochs) in enumerate(cases):
        seed = 700 + number
        rng = torch.Generator().manual_seed(seed)
        pictures = F.interpolate(torch.rand(4 * each, 1, 4, 4, generator=rng), size=8, mode="bilinear")
        seen = recorded(pictures, each, seed, noise=noise, epochs=epochs)
        for client, one in enumerate(confidence(seen, run)):
            truth = decibels(one.inputs, pictures[client * each : (client + 1) * each])
            wrong += [sure for sure, value in zip(one.believed, truth, strict=True) if value < 20]
            nothing += one.believed if math.isinf(noise) else ()
            plain += one.believed if (each, noise, epochs) == (1, 0.0, 1) else ()
    assert len(wrong) >= 15, "there is something to be wrong about"
    assert sum(wrong) <= len(wrong) / 20
    assert not any(nothing)
    assert sum(plain) >= 3
