"""The rounds of a federation: broadcast, local work, defended messages, aggregation; recorded as the server sees it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedleak.defenses.base import Context, Defense
from fedleak.defenses.compose import Chain, chain
from fedleak.errors import RefusedError
from fedleak.federation.base import Problem, Settings
from fedleak.federation.client import Batching, Task, Work, prepare, send, work_all
from fedleak.federation.networks import check_network
from fedleak.learning.functional import Loss, Network, accuracy, loss_named, predict
from fedleak.learning.sgd import Local
from fedleak.models import build_model
from fedleak.seeding import Seeds
from fedleak.types import (
    Examples,
    Message,
    Named,
    Payload,
    Predictions,
    Progress,
    Recording,
    Round,
    Transcript,
    Truth,
    Weights,
)

__all__ = ["Rules", "Server", "federate"]


@dataclass(frozen=True, eq=False)
class Server:
    """The global model, and what else the server carries from round to round (its momentum)."""

    model: Weights
    memory: Named = field(default_factory=dict)


@dataclass(frozen=True)
class Rules:
    """What makes a protocol: which batches, what work, what is sent, how the server uses it."""

    epochs: int
    batching: Batching
    work: Callable[[Network, Loss], Work]
    pack: Callable[[Local, Weights], Payload]
    merge: Callable[[Server, Sequence[Message], Sequence[int]], Server]
    """(server, messages, samples behind each) to the server of the next round."""


def federate(
    problem: Problem,
    settings: Settings,
    rules: Rules,
    defense: Defense,
    seeds: Seeds,
    progress: Progress,
    device: str,
) -> Recording:
    """Run all rounds; return what the server saw in the recorded ones and, apart from it, the truth."""
    defenses = _allowed(chain(defense))
    module = build_model(problem.model, problem.input_shape, problem.classes, seeds.generator("model")).to(device)
    network, judge = Network(module), Network(copy.deepcopy(module).eval())
    work = rules.work(network, loss_named(problem.loss))
    server = Server(Weights(network.initial(), network.buffers()))
    problem = replace(problem, classes=_told_apart(problem, settings, judge, device))
    offsets, private, owners = _pooled(problem.clients)
    test = problem.normalisation.apply(problem.test.inputs).to(device), problem.test.labels.to(device)

    def judged(model: Weights) -> Tensor:
        if not len(problem.test):
            return torch.zeros(0)
        return accuracy(judge, {**model.tensors, **model.buffers}, *test).cpu()

    evaluated = set(settings.evaluated_rounds())
    correct = judged(server.model)
    utility = [_mean(correct)]
    rounds: list[Round] = []
    used: dict[tuple[int, str], Tensor] = {}
    for index in range(1, settings.rounds + 1):
        tasks = [
            _task(problem, settings, rules, defenses, name, index, server.model, seeds, device)
            for name in _participants(tuple(problem.clients), settings.participation, index, seeds)
        ]
        done = work_all(work, tasks, server.model, defenses, settings.vectorise)
        messages = tuple(
            send(
                task,
                rules.pack(local, server.model),
                defenses,
                settings.disclose,
                problem.clients[task.client].labels[task.chosen],
                problem.classes,
            )
            for task, local in zip(tasks, done, strict=True)
        )
        samples = [task.samples() for task in tasks]
        if index <= settings.recorded_rounds():
            seen = settings.seen(messages, samples, rules.epochs, index)
            received = tuple(replace(m, payload=_on_cpu(m.payload)) for m in seen)
            rounds.append(Round(index, _weights_on_cpu(server.model), received))
            used.update(_used(index, seen, tasks, offsets))
        # The mean of all is all that the server's step needs, so that it comes out the same either way.
        server = rules.merge(server, messages, samples)
        if index in evaluated:
            correct = judged(server.model)
            utility.append(_mean(correct))
        progress(index, settings.rounds)
    truth = Truth(private, owners, used, problem.test, tuple(utility), correct)
    return Recording(Transcript(settings.setup(problem, rules.epochs), tuple(rounds)), truth)


def _told_apart(problem: Problem, settings: Settings, network: Network, device: str) -> int:
    """How many classes the network tells apart. One of somebody's own may not take the pictures, or know too few of
    their labels; with more outputs than there are labels an attack searches among all of them, as the server does."""
    one = problem.normalisation.apply(next(iter(problem.clients.values())).inputs[:1]).to(device)

    def ask() -> Tensor:
        return predict(network, network.initial(), one)

    who = f"{type(settings).__name__.lower()}: the network"
    return check_network(who, ask, problem.input_shape, problem.classes, None)


def _allowed(defense: Chain) -> Chain:
    for member in defense.members:
        if member.stage == "protocol":
            raise RefusedError(
                f"{type(member).__name__}: changes the plan of a protocol whose clients send predictions, and would do "
                "nothing here; use it with fedmd, dsfl or fedgems, or for fewer rounds set rounds"
            )
    return defense


def _task(
    problem: Problem,
    settings: Settings,
    rules: Rules,
    defense: Chain,
    name: str,
    index: int,
    broadcast: Weights,
    seeds: Seeds,
    device: str,
) -> Task:
    return prepare(
        name,
        problem.clients[name],
        settings.examples if index == settings.attacked_round else None,
        rules.batching,
        problem.normalisation,
        defense,
        # FedSGD and FedAvg clients keep no model of their own: before the round's work they hold the broadcast.
        Context(
            stage="examples",
            client=name,
            round=index,
            broadcast=broadcast,
            previous=broadcast.tensors,
            rounds=settings.rounds,
        ),
        seeds.under("client", name, "round", index),
        device,
    )


def _used(
    index: int, seen: Sequence[Message], tasks: Sequence[Task], offsets: Mapping[str, int]
) -> dict[tuple[int, str], Tensor]:
    """The examples behind each message that the server sees: behind a sum, those of all its clients."""
    behind = {task.client: offsets[task.client] + task.chosen for task in tasks}
    if any(message.sender not in behind for message in seen):
        return {(index, message.sender): torch.cat(list(behind.values())) for message in seen}
    return {(index, client): positions for client, positions in behind.items()}


def _participants(names: Sequence[str], share: float, index: int, seeds: Seeds) -> list[str]:
    """The clients of a round, in their usual order."""
    count = max(1, round(share * len(names)))
    drawn = torch.randperm(len(names), generator=seeds.generator("participation", "round", index))[:count]
    return [names[at] for at in sorted(drawn.tolist())]


def _pooled(clients: Mapping[str, Examples]) -> tuple[dict[str, int], Examples, tuple[str, ...]]:
    """All private examples in one row, where each client's begin, and whose each is."""
    offsets: dict[str, int] = {}
    owners: list[str] = []
    for name, examples in clients.items():
        offsets[name] = len(owners)
        owners.extend([name] * len(examples))
    inputs = torch.cat([examples.inputs for examples in clients.values()])
    labels = torch.cat([examples.labels for examples in clients.values()])
    return offsets, Examples(inputs, labels), tuple(owners)


def _mean(correct: Tensor) -> float:
    return float(correct.double().mean()) if len(correct) else float("nan")


def _copies(tensors: Named) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in tensors.items()}


def _weights_on_cpu(weights: Weights) -> Weights:
    return Weights(_copies(weights.tensors), _copies(weights.buffers))


def _on_cpu(payload: Payload) -> Payload:
    if isinstance(payload, Weights):
        return _weights_on_cpu(payload)
    if isinstance(payload, Predictions):
        return replace(payload, values=payload.values.detach().cpu().clone())
    return replace(payload, tensors=_copies(payload.tensors))
