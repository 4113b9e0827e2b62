"""Where in a client's round each stage of a defense acts, and with what it is told."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch

from fedleak.defenses import Clip, Context, Gaussian, Guarantee, OneShot, Plan, Sparsify, Stage, chain, identity
from fedleak.defenses.payloads import global_norm, update_of
from fedleak.errors import RefusedError, ShapeError
from fedleak.federation import FedAvg, FedSGD, Problem
from fedleak.seeding import Seeds
from fedleak.types import Examples, Gradients, ModelSpec, Recording, Weights


def problem(clients: int = 3, each: int = 4) -> Problem:
    rng = torch.Generator().manual_seed(0)

    def some(count: int) -> Examples:
        return Examples(torch.rand(count, 1, 5, 5, generator=rng), torch.arange(count) % 3)

    spec = ModelSpec("mlp", {"hidden": 6})
    return Problem({f"c{at}": some(each) for at in range(clients)}, some(6), spec, (1, 5, 5), 3)


def flat(recording: Recording, index: int = 1, client: int = 0) -> torch.Tensor:
    payload = recording.transcript.round(index).received[client].payload
    assert isinstance(payload, (Gradients, Weights))
    return torch.cat([value.flatten() for value in payload.tensors.values()])


@dataclass(frozen=True)
class Spy:
    """Notes what it is given and passes it on."""

    paper: ClassVar[str] = ""
    revision: ClassVar[int] = 1
    stage: ClassVar[Stage | None] = "message"
    seen: list[tuple[Any, Context]] = field(default_factory=list)

    def apply(self, value: Any, context: Context, rng: torch.Generator) -> Any:
        self.seen.append((value, context))
        return value

    def after(self, plan: Plan) -> Plan:
        return plan

    def guarantee(self, plan: Plan) -> Guarantee:
        return Guarantee("none", "none: it only looks")


class GradientSpy(Spy):
    stage: ClassVar[Stage | None] = "gradients"


class ExampleSpy(Spy):
    stage: ClassVar[Stage | None] = "examples"


class Blackening(ExampleSpy):
    def apply(self, value: Any, context: Context, rng: torch.Generator) -> Any:
        return replace(value, inputs=torch.zeros_like(value.inputs))


class Dropping(ExampleSpy):
    def apply(self, value: Any, context: Context, rng: torch.Generator) -> Any:
        return value.take(torch.tensor([0]))


class Silencing(GradientSpy):
    def apply(self, value: Any, context: Context, rng: torch.Generator) -> Any:
        return {name: torch.zeros_like(tensor) for name, tensor in value.items()}


def test_the_message_stage_sees_payload_broadcast_samples_and_round() -> None:
    spy = Spy()
    run = FedAvg(rounds=2, epochs=2, examples=1, record="all")(problem(), spy, Seeds(0))
    assert [(c.client, c.round, c.samples, c.rounds) for _, c in spy.seen] == [
        (f"c{client}", index, 1 if index == 1 else 4, 2) for index in (1, 2) for client in range(3)
    ]
    payload, context = spy.seen[3]
    broadcast = run.transcript.round(2).broadcast
    assert isinstance(payload, Weights)
    assert isinstance(broadcast, Weights)
    assert context.broadcast is not None
    assert context.previous is not None
    assert all(torch.equal(context.broadcast.tensors[name], value) for name, value in broadcast.tensors.items())
    assert all(torch.equal(context.previous[name], value) for name, value in broadcast.tensors.items())


def test_the_gradients_stage_sees_per_example_gradients_of_every_step() -> None:
    spy = GradientSpy()
    defended = FedAvg(epochs=2, batch_size=3)(problem(), spy, Seeds(0))
    assert [len(value["1.bias"]) for value, _ in spy.seen] == [3, 1, 3, 1] * 3
    assert all(context.stage == "gradients" for _, context in spy.seen)
    plain = FedAvg(epochs=2, batch_size=3)(problem(), identity, Seeds(0))
    assert torch.allclose(flat(defended), flat(plain), atol=1e-6)


@pytest.mark.parametrize("protocol", [FedSGD(), FedAvg(epochs=2)])
def test_gradients_silenced_at_their_stage_leave_nothing_to_send(protocol: Any) -> None:
    run = protocol(problem(), Silencing(), Seeds(0))
    first = run.transcript.round(1)
    update = update_of(first.received[0].payload, Context("message", broadcast=first.broadcast))
    assert global_norm(update) == 0.0


def test_the_examples_stage_acts_before_training_and_not_on_the_truth() -> None:
    run = FedSGD()(problem(), Blackening(), Seeds(0))
    payload = run.transcript.round(1).received[0].payload
    assert isinstance(payload, Gradients)
    assert float(payload.tensors["1.weight"].abs().max()) == 0.0
    assert float(run.truth.private.inputs.max()) > 0.5


def test_a_defense_that_loses_examples_is_an_error() -> None:
    with pytest.raises(ShapeError, match="4 examples into 1"):
        FedSGD()(problem(), Dropping(), Seeds(0))


def test_noise_on_the_wire_is_what_the_server_aggregates() -> None:
    defense = Gaussian(sigma=0.1)
    plain, noisy = (FedSGD(rounds=2, record="all", lr=0.5)(problem(), d, Seeds(1)) for d in (identity, defense))
    noise = torch.stack([flat(noisy, 1, c) - flat(plain, 1, c) for c in range(3)])
    assert float(noise.std()) == pytest.approx(0.1, rel=0.15)
    moved = [r.transcript.round(2).broadcast for r in (plain, noisy)]
    assert all(isinstance(weights, Weights) for weights in moved)
    one, two = (torch.cat([v.flatten() for v in w.tensors.values()]) for w in moved if isinstance(w, Weights))
    assert torch.allclose(two - one, -0.5 * noise.mean(dim=0), atol=1e-5)


def test_noise_is_fresh_for_every_client_and_round() -> None:
    run = FedSGD(rounds=2, record="all", lr=1e-12)(problem(), Gaussian(sigma=1.0), Seeds(2))
    plain = FedSGD(rounds=2, record="all", lr=1e-12)(problem(), identity, Seeds(2))
    noise = [flat(run, r, c) - flat(plain, r, c) for r in (1, 2) for c in range(3)]
    for at, one in enumerate(noise):
        for other in noise[:at]:
            assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.4


def test_a_defense_does_not_change_who_trains_on_what() -> None:
    settings: dict[str, Any] = {"rounds": 3, "participation": 0.6, "batch_size": 2, "examples": 1, "record": "all"}
    plain = FedSGD(**settings)(problem(5), identity, Seeds(3))
    noisy = FedSGD(**settings)(problem(5), Gaussian(sigma=0.5), Seeds(3))
    assert {k: v.tolist() for k, v in plain.truth.used.items()} == {k: v.tolist() for k, v in noisy.truth.used.items()}


@pytest.mark.parametrize("protocol", [FedSGD(), FedAvg(epochs=3)])
def test_a_chain_of_clip_and_sparsify_on_real_messages(protocol: Any) -> None:
    run = protocol(problem(), chain(Clip(norm=0.01), Sparsify(fraction=0.75)), Seeds(4))
    first = run.transcript.round(1)
    for message in first.received:
        update = update_of(message.payload, Context("message", broadcast=first.broadcast))
        values = torch.cat([value.flatten() for value in update.values()])
        assert int((values == 0).sum()) >= round(0.75 * len(values))
        assert global_norm(update) <= 0.01 * 1.001


@pytest.mark.parametrize("protocol", [FedAvg(), FedSGD()])
def test_a_defense_that_would_do_nothing_is_refused(protocol: Any) -> None:
    with pytest.raises(RefusedError, match=r"OneShot: changes the plan .* would do nothing here"):
        protocol(problem(), OneShot(), Seeds(1))
