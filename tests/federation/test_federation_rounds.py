"""FedSGD and FedAvg: identities between them, what the server sees, and what only the evaluator holds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pydantic
import pytest
import torch
from torch import Tensor, nn

from fedleak.components import configure
from fedleak.defenses import identity
from fedleak.errors import DataError, RefusedError, ShapeError
from fedleak.federation import PROTOCOLS, FedAvg, FederationProtocol, FedSGD, Problem
from fedleak.learning.functional import Network, accuracy, cross_entropy
from fedleak.learning.sgd import batch_gradient
from fedleak.models import build_model
from fedleak.seeding import Seeds
from fedleak.types import Examples, Gradients, ModelSpec, Named, Recording, Weights


def some(count: int, rng: torch.Generator) -> Examples:
    labels = torch.randint(0, 3, (count,), generator=rng)
    # The class shows as brightness, so that there is something to learn.
    return Examples(0.3 * torch.rand(count, 1, 6, 6, generator=rng) + 0.3 * labels.reshape(-1, 1, 1, 1), labels)


def problem(*sizes: int, model: ModelSpec | None = None) -> Problem:
    rng = torch.Generator().manual_seed(0)
    clients = {f"client-{at}": some(size, rng) for at, size in enumerate(sizes)}
    spec = ModelSpec("mlp", {"hidden": 5}) if model is None else model
    return Problem(clients, some(30, rng), spec, (1, 6, 6), 3)


def close(one: Named, two: Named, tolerance: float = 1e-6) -> bool:
    return list(one) == list(two) and all(torch.allclose(one[n], two[n], atol=tolerance) for n in one)


def broadcast(recording: Recording, index: int) -> Named:
    weights = recording.transcript.round(index).broadcast
    assert isinstance(weights, Weights)
    return weights.tensors


def sent(recording: Recording, index: int, client: int = 0) -> Named:
    payload = recording.transcript.round(index).received[client].payload
    assert isinstance(payload, (Gradients, Weights))
    return payload.tensors


def test_fedavg_with_one_full_batch_epoch_is_fedsgd() -> None:
    # mean(w - lr g_k) = w - lr mean(g_k), also with clients of different sizes
    case, seeds = problem(4, 7, 2), Seeds(1)
    sgd = FedSGD(rounds=3, lr=0.5, record="all")(case, identity, seeds)
    avg = FedAvg(rounds=3, lr=0.5, epochs=1, record="all")(case, identity, seeds)
    for index in (1, 2, 3):
        assert close(broadcast(sgd, index), broadcast(avg, index))
    assert sgd.truth.utility == avg.truth.utility


def test_the_gradient_sent_is_the_gradient_of_the_examples_behind_it() -> None:
    case = problem(4, 7)
    run = FedSGD(rounds=2, lr=0.5, batch_size=3, record="all")(case, identity, Seeds(1))
    network = Network(build_model(case.model, (1, 6, 6), 3))
    for index in (1, 2):
        for message in run.transcript.round(index).received:
            behind = run.truth.behind(index, message.sender)
            expected = batch_gradient(network, cross_entropy, broadcast(run, index), behind.inputs, behind.labels)
            assert isinstance(message.payload, Gradients)
            assert close(message.payload.tensors, expected.parameters)
            assert message.disclosed == {"samples": 3}


def test_fedsgd_with_server_momentum_is_torch_optim_on_the_pooled_data() -> None:
    case, seeds = problem(4, 4), Seeds(2)
    run = FedSGD(rounds=4, lr=0.3, momentum=0.9, record="all")(case, identity, seeds)
    module = build_model(case.model, (1, 6, 6), 3, seeds.generator("model"))
    optimiser = torch.optim.SGD(module.parameters(), lr=0.3, momentum=0.9)
    pooled = run.truth.private
    for index in range(1, 5):
        assert close(broadcast(run, index), dict(module.named_parameters()), 1e-5)
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(pooled.inputs), pooled.labels).backward()
        optimiser.step()


def test_one_fedavg_client_with_uneven_batches_and_momentum_is_torch_optim() -> None:
    case, seeds = problem(7), Seeds(3)
    run = FedAvg(lr=0.2, momentum=0.8, batch_size=3, epochs=2, shuffle=False)(case, identity, seeds)
    module = build_model(case.model, (1, 6, 6), 3, seeds.generator("model"))
    optimiser = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.8)
    data = case.clients["client-0"]
    for at in [slice(0, 3), slice(3, 6), slice(6, 7)] * 2:
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(data.inputs[at]), data.labels[at]).backward()
        optimiser.step()
    assert all(torch.equal(sent(run, 1)[name], value) for name, value in module.named_parameters())


def test_the_weighted_mean_by_hand() -> None:
    run = FedAvg(rounds=2, lr=0.5, record="all")(problem(1, 3), identity, Seeds(4))
    mean = {name: 0.25 * value + 0.75 * sent(run, 1, 1)[name] for name, value in sent(run, 1, 0).items()}
    assert close(broadcast(run, 2), mean)


@pytest.mark.parametrize("protocol", [FedSGD(rounds=2, record="all"), FedAvg(rounds=2, epochs=3, record="all")])
@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("kind", ["mlp", "lenet", "cnn"])
def test_stacked_clients_agree_with_clients_one_by_one(protocol: Any, batch_size: int | None, kind: str) -> None:
    case = problem(5, 5, 3, 5, model=ModelSpec(kind))
    one, two = (
        replace(protocol, batch_size=batch_size, vectorise=how)(case, identity, Seeds(5)) for how in ("always", "never")
    )
    for index in (1, 2):
        for client in range(4):
            assert close(sent(one, index, client), sent(two, index, client), 1e-5)
    assert {key: value.tolist() for key, value in one.truth.used.items()} == {
        key: value.tolist() for key, value in two.truth.used.items()
    }


def test_the_attacked_round_uses_few_examples_and_the_others_all() -> None:
    run = FedAvg(rounds=3, epochs=2, examples=1, attacked_round=2, record="all", batch_size=2)(
        problem(5, 4), identity, Seeds(6)
    )
    sizes = {key: len(value) for key, value in run.truth.used.items()}
    assert sizes == {(r, f"client-{c}"): 1 if r == 2 else 5 - c for r in (1, 2, 3) for c in (0, 1)}
    disclosed = [[m.disclosed["samples"] for m in r.received] for r in run.transcript.rounds]
    assert disclosed == [[5, 4], [1, 1], [5, 4]]
    assert {run.truth.owners[int(at)] for at in run.truth.used[(2, "client-1")]} == {"client-1"}


def test_a_client_with_fewer_examples_than_asked_uses_what_it_has() -> None:
    run = FedSGD(examples=4)(problem(2, 6), identity, Seeds(6))
    assert [len(run.truth.used[(1, f"client-{c}")]) for c in (0, 1)] == [2, 4]


def test_only_rounds_up_to_the_attacked_one_are_recorded_unless_all_are_asked_for() -> None:
    case = problem(3, 3)
    short = FedSGD(rounds=5, attacked_round=2)(case, identity, Seeds(7))
    whole = FedSGD(rounds=5, attacked_round=2, record="all")(case, identity, Seeds(7))
    assert [r.index for r in short.transcript.rounds] == [1, 2]
    assert [r.index for r in whole.transcript.rounds] == [1, 2, 3, 4, 5]
    assert {index for index, _ in short.truth.used} == {1, 2}
    assert close(sent(short, 2), sent(whole, 2), 0.0)
    assert short.truth.utility == whole.truth.utility


def test_utility_is_measured_before_round_one_every_so_often_and_at_the_end() -> None:
    protocol = FedSGD(rounds=7, lr=1.0, evaluate_every=3)
    run = protocol(problem(8, 8), identity, Seeds(8))
    often = replace(protocol, evaluate_every=1)(problem(8, 8), identity, Seeds(8))
    assert protocol.evaluated_rounds() == (0, 3, 6, 7)
    assert run.truth.utility == tuple(often.truth.utility[at] for at in (0, 3, 6, 7))
    assert len(often.truth.utility) == 8


def test_correct_holds_the_final_model_on_every_test_example() -> None:
    case = problem(20, 20)
    run = FedAvg(rounds=30, epochs=5, lr=0.3, momentum=0.5)(case, identity, Seeds(9))
    assert run.truth.correct.shape == (30,)
    assert run.truth.utility[-1] == pytest.approx(float(run.truth.correct.double().mean()))
    assert run.truth.utility[-1] > 0.9 > run.truth.utility[0]


def test_the_first_model_is_judged_before_any_round() -> None:
    case, seeds = problem(3), Seeds(10)
    network = Network(build_model(case.model, (1, 6, 6), 3, seeds.generator("model")))
    before = accuracy(network, network.initial(), case.test.inputs, case.test.labels).double().mean()
    assert FedSGD()(case, identity, seeds).truth.utility[0] == pytest.approx(float(before))


def test_without_test_examples_there_is_no_utility() -> None:
    case = problem(3)
    bare = replace(case, test=Examples(torch.zeros(0, 1, 6, 6), torch.zeros(0, dtype=torch.int64)))
    run = FedSGD()(bare, identity, Seeds(0))
    assert all(math.isnan(value) for value in run.truth.utility)
    assert len(run.truth.correct) == 0


def test_partial_participation_takes_the_share_and_changes_from_round_to_round() -> None:
    run = FedSGD(rounds=12, participation=0.4, record="all")(problem(*[2] * 5), identity, Seeds(11))
    senders = [tuple(m.sender for m in r.received) for r in run.transcript.rounds]
    assert {len(names) for names in senders} == {2}
    assert len(set(senders)) > 3
    assert all(list(names) == sorted(names) for names in senders)


def test_the_smallest_share_is_one_client() -> None:
    run = FedSGD(participation=0.01)(problem(2, 2, 2), identity, Seeds(12))
    assert len(run.transcript.round(1).received) == 1


def test_shuffling_changes_the_order_of_every_epoch() -> None:
    orders = [
        torch.cat(FedAvg(batch_size=2, epochs=1)._batches(9, 1, Seeds(0).generator("client", "a", "round", r))).tolist()
        for r in (1, 2)
    ]
    both = torch.cat(FedAvg(batch_size=2, epochs=2)._batches(9, 1, Seeds(0).generator("x"))).tolist()
    assert orders[0] != orders[1]
    assert both[:9] != both[9:]
    assert sorted(both[:9]) == sorted(both[9:]) == list(range(9))


def test_fedsgd_without_shuffling_takes_the_batches_in_turn() -> None:
    run = FedSGD(rounds=4, batch_size=2, shuffle=False, record="all")(problem(5), identity, Seeds(13))
    assert [run.truth.used[(r, "client-0")].tolist() for r in (1, 2, 3, 4)] == [[0, 1], [2, 3], [4], [0, 1]]


@pytest.mark.parametrize("name", ["fedavg", "fedsgd"])
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(name: str) -> None:
    protocol = configure(PROTOCOLS[name], {"rounds": 2, "batch_size": 2, "participation": 0.7, "record": "all"})
    assert isinstance(protocol, FederationProtocol)
    torch.manual_seed(1)
    one = protocol(problem(5, 4, 6), identity, Seeds(14))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    two = protocol(problem(5, 4, 6), identity, Seeds(14))
    assert torch.equal(state, torch.get_rng_state())
    other = protocol(problem(5, 4, 6), identity, Seeds(15))
    assert all(torch.equal(sent(one, 2)[n], sent(two, 2)[n]) for n in sent(one, 2))
    assert not close(sent(one, 1), sent(other, 1))


@pytest.mark.parametrize("name", ["fedavg", "fedsgd"])
def test_what_is_not_disclosed_is_nowhere_in_the_transcript(name: str) -> None:
    protocol = configure(PROTOCOLS[name], {"disclose": ["lr"], "lr": 0.25, "batch_size": 2})
    run = protocol(problem(4, 4), identity, Seeds(16))
    assert run.transcript.setup.disclosed == {"lr": 0.25}
    assert all(m.disclosed == {} for m in run.transcript.round(1).received)
    told = configure(PROTOCOLS[name], {"batch_size": 2})(problem(4, 4), identity, Seeds(16))
    assert told.transcript.setup.disclosed == {"batch_size": 2, "epochs": 1, "lr": 0.1, "momentum": 0.0}


def test_label_counts_are_disclosed_only_on_request() -> None:
    run = FedSGD(disclose=("label_counts",))(problem(6, 3), identity, Seeds(17))
    for message in run.transcript.round(1).received:
        labels = run.truth.behind(1, message.sender).labels
        assert message.disclosed == {"label_counts": [int((labels == c).sum()) for c in range(3)]}


def test_the_number_of_distinct_labels_is_disclosed_only_on_request() -> None:
    run = FedSGD(disclose=("unique_labels",))(problem(6, 3), identity, Seeds(17))
    for message in run.transcript.round(1).received:
        labels = run.truth.behind(1, message.sender).labels
        assert message.disclosed == {"unique_labels": len(set(labels.tolist()))}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"disclose": ["labels"]}, "disclose"),
        ({"rounds": 3, "attacked_round": 4}, "attacked_round"),
        ({"participation": 0.0}, "participation"),
        ({"momentum": 1.0}, "momentum"),
        ({"epoch": 3}, "epoch"),
    ],
)
def test_senseless_settings_are_refused_with_the_name_of_the_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(pydantic.ValidationError) as refused:
        configure(FedAvg, given)
    assert refused.value.errors()[0]["loc"][0] == field


def test_progress_is_reported_every_round() -> None:
    seen: list[tuple[int, int]] = []
    FedSGD(rounds=3)(problem(2), identity, Seeds(0), lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_broken_problems_are_refused_by_name() -> None:
    case = problem(3, 3)
    empty = Examples(torch.zeros(0, 1, 6, 6), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(DataError, match="client-9"):
        replace(case, clients={"client-9": empty})
    with pytest.raises(DataError, match="at least one client"):
        replace(case, clients={})
    with pytest.raises(ShapeError, match="client-0"):
        replace(case, input_shape=(3, 6, 6))
    with pytest.raises(DataError, match="labels"):
        replace(case, classes=2)


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(RefusedError, match="loss='l7'"):
        FedSGD()(replace(problem(2), loss="l7"), identity, Seeds(0))


def test_pixels_in_the_truth_and_normalised_inputs_in_the_model() -> None:
    from fedleak.types import Normalisation

    case = replace(problem(4), normalisation=Normalisation((0.5,), (0.25,)))
    run = FedSGD(lr=0.1)(case, identity, Seeds(18))
    data: Tensor = case.clients["client-0"].inputs
    assert torch.equal(run.truth.private.inputs, data)
    network = Network(build_model(case.model, (1, 6, 6), 3))
    expected = batch_gradient(network, cross_entropy, broadcast(run, 1), (data - 0.5) / 0.25, run.truth.private.labels)
    assert close(sent(run, 1), expected.parameters)
