"""The clients of a logit protocol: each keeps a model of its own; those with alike models train as one stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedleak.defenses.base import Context
from fedleak.defenses.compose import Chain
from fedleak.errors import ShapeError
from fedleak.federation.base import Problem
from fedleak.federation.logits.settings import LogitSettings
from fedleak.learning.batches import schedule
from fedleak.learning.functional import Network
from fedleak.learning.layout import apart
from fedleak.learning.stacked import Objective, Stack
from fedleak.models import build_model
from fedleak.seeding import Seeds
from fedleak.types import Examples, PublicSet

__all__ = ["Clients", "batches_of"]


@dataclass(frozen=True, eq=False)
class _Group:
    """Clients with alike models; `members` are their positions among all clients."""

    members: tuple[int, ...]
    stack: Stack


def batches_of(count: int, batch_size: int | None, epochs: int, rng: torch.Generator) -> tuple[Tensor, ...]:
    """The batches of all epochs in a row; none of zero epochs."""
    return tuple(batch for epoch in schedule(count, batch_size, epochs, rng) for batch in epoch) if epochs else ()


class Clients:
    """All clients of a federation, in the order of the problem."""

    def __init__(self, problem: Problem, settings: LogitSettings, defense: Chain, seeds: Seeds, device: str) -> None:
        self.problem, self.settings, self.defense, self.seeds, self.device = problem, settings, defense, seeds, device
        self.names = tuple(problem.clients)
        self.version = 0
        """Counts the phases of training: the same number, the same models."""
        self._changes_examples = any(member.stage == "examples" for member in defense.members)
        self._private = [self._inputs(problem.clients[name]) for name in self.names]
        self._groups = self._grouped()
        # Only a defense may look at the client's previous model; without one it is not kept.
        self._previous = self._snapshots() if self._keeps_models else {}

    def __len__(self) -> int:
        return len(self.names)

    @property
    def _keeps_models(self) -> bool:
        return any(member.stage == "message" for member in self.defense.members)

    def _grouped(self) -> list[_Group]:
        alike: dict[str, list[int]] = {}
        specs = [self.settings.client_spec(self.problem, number) for number in range(len(self))]
        for number, spec in enumerate(specs):
            alike.setdefault(repr((spec.name, id(spec.factory), sorted(spec.arguments.items()))), []).append(number)
        groups = []
        for members in alike.values():
            modules = [
                build_model(
                    specs[number],
                    self.problem.input_shape,
                    self.problem.classes,
                    self.seeds.generator("model", self.names[number]),
                )
                for number in members
            ]
            stack = Stack(
                modules,
                lr=self.settings.lr,
                weight_decay=self.settings.weight_decay,
                optimiser=self.settings.optimizer,
                device=self.device,
            )
            groups.append(_Group(tuple(members), stack))
        return groups

    def _inputs(self, examples: Examples) -> tuple[Tensor, Tensor]:
        return self.problem.normalisation.apply(examples.inputs).to(self.device), examples.labels.to(self.device)

    def _at(self, number: int, index: int) -> Seeds:
        return self.seeds.under("client", self.names[number], "round", index)

    def _used(self, number: int, index: int) -> tuple[Tensor, Tensor]:
        """A client's examples as it trains on them in a round; a defense may change them, anew every round."""
        if not self._changes_examples:
            return self._private[number]
        own = self.problem.clients[self.names[number]]
        context = Context(
            stage="examples",
            client=self.names[number],
            round=index,
            samples=len(own),
            rounds=self.settings.rounds,
            normalisation=self.problem.normalisation,
        )
        defended: Examples = self.defense.apply(own, context, self._at(number, index).generator("defense", "examples"))
        if len(defended) != len(own):
            name = self.names[number]
            raise ShapeError(f"{name}: a defense turned {len(own)} examples into {len(defended)}; it must keep them")
        return self._inputs(defended)

    def learn_private(self, loss: Objective, epochs: int, index: int) -> None:
        """Every client trains on its own examples."""
        self.version += 1
        for number, group in enumerate(self._groups):
            used = [self._used(member, index) for member in group.members]
            order = [
                batches_of(len(y), self.settings.batch_size, epochs, self._at(member, index).generator("private"))
                for member, (_, y) in zip(group.members, used, strict=True)
            ]
            rng = self.seeds.generator("modules", number, "private", index)
            self.settings.begin_phase(group.stack)
            group.stack.fit(loss, [x for x, _ in used], [[y for _, y in used]], order, rng=rng)

    def learn_public(self, loss: Objective, inputs: Tensor, targets: Sequence[Tensor], epochs: int, index: int) -> None:
        """Every client trains on the public examples, each in an order of its own."""
        self.version += 1
        for number, group in enumerate(self._groups):
            order = [
                batches_of(
                    len(inputs), self.settings.public_batch_size, epochs, self._at(member, index).generator("public")
                )
                for member in group.members
            ]
            rng = self.seeds.generator("modules", number, "public", index)
            self.settings.begin_phase(group.stack)
            group.stack.fit(loss, inputs, targets, order, rng=rng)

    def networks(self) -> list[tuple[str, Stack]]:
        """Every kind of network, under the name of a client that has it."""
        return [(self.names[group.members[0]], group.stack) for group in self._groups]

    def predict(self, inputs: Tensor) -> Tensor:
        """The logits of every client: (clients, n, classes)."""
        return torch.stack(list(self.outputs(inputs).values()))

    def outputs(self, inputs: Tensor) -> dict[str, Tensor]:
        """The same by name: what each client's network makes of these inputs."""
        rows: dict[int, Tensor] = {}
        for group in self._groups:
            rows.update(zip(group.members, group.stack.predict_each(inputs), strict=True))
        return {name: rows[number] for number, name in enumerate(self.names)}

    def private_inputs(self) -> list[Tensor]:
        """Every client's own examples, as its model sees them, without any defense."""
        return [inputs for inputs, _ in self._private]

    def predict_own(self) -> list[Tensor]:
        """The logits of every client on its own examples."""
        rows: dict[int, Tensor] = {}
        for group in self._groups:
            own = [self._private[member][0] for member in group.members]
            rows.update(zip(group.members, group.stack.predict_each(own), strict=True))
        return [rows[number] for number in range(len(self))]

    def _snapshots(self) -> dict[int, Network]:
        return {
            member: Network(apart(module).eval())
            for group in self._groups
            for member, module in zip(group.members, group.stack.modules, strict=True)
        }

    def contexts(self, index: int, public: PublicSet) -> list[Context]:
        """What each client's defense may use for the message of this round: called once a round, at the upload.

        `previous` is the model behind the client's message of the round before; in round 1, its model before any work.
        """
        before = self._previous
        if self._keeps_models:
            self._previous = self._snapshots()
        return [
            Context(
                stage="message",
                client=name,
                round=index,
                previous=before[number].initial() if number in before else None,
                network=before.get(number),
                normalisation=self.problem.normalisation,
                public=public,
                samples=len(self.problem.clients[name]),
                rounds=self.settings.rounds,
            )
            for number, name in enumerate(self.names)
        ]

    def message_rng(self, number: int, index: int) -> torch.Generator:
        """Fresh at every use."""
        return self._at(number, index).generator("defense", "message")
