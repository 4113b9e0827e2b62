"""One run of a logit protocol: uploads, defended and recorded as the server sees them, and apart from it the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedleak.defenses.base import Context, Defense, ProtocolPlan
from fedleak.defenses.compose import chain
from fedleak.errors import RefusedError, ShapeError
from fedleak.federation.base import Problem
from fedleak.federation.logits.checks import allowed, check_outputs, check_targets, held, usable_public
from fedleak.federation.logits.client import Clients, batches_of
from fedleak.federation.logits.settings import LogitSettings
from fedleak.federation.logits.witness import Witness
from fedleak.learning.stacked import Objective, Stack
from fedleak.models import build_model
from fedleak.seeding import Seeds
from fedleak.types import Message, Predictions, Progress, Recording, Round, Setup, Transcript

__all__ = ["Exchange"]


class Exchange:
    """The parties of one run and what is written down about it. A protocol decides who learns what, and when.

    `settings` are those of the protocol with the number of rounds that its defenses leave; `inputs` and `labels` are
    the public set, normalised and on the device.
    """

    def __init__(
        self,
        problem: Problem,
        settings: LogitSettings,
        defense: Defense,
        seeds: Seeds,
        progress: Progress,
        device: str,
        *,
        name: str,
    ) -> None:
        self.name, self.problem, self.seeds, self.device, self._progress = name, problem, seeds, device, progress
        check_targets(problem)
        needs_labels = settings.uses_public_labels
        self._defense = allowed(name, chain(defense))
        plan: ProtocolPlan = self._defense.apply(
            ProtocolPlan(settings.rounds, usable_public(name, problem, needs_labels)),
            Context(stage="protocol", rounds=settings.rounds),
            seeds.generator("defense", "protocol"),
        )
        self.public = usable_public(name, replace(problem, public=plan.public), needs_labels)
        attacked = settings.attacked_round
        self.settings = replace(
            settings, rounds=plan.rounds, attacked_round=None if attacked is None else min(attacked, plan.rounds)
        )
        self.inputs = problem.normalisation.apply(self.public.inputs).to(device)
        self.labels = None if self.public.labels is None else self.public.labels.to(device)
        self.clients = Clients(problem, self.settings, self._defense, seeds, device)
        self.server = self._own_model() if settings.server_epochs > 0 else None
        check_outputs(name, self.clients, self.server, self.inputs, problem.classes)
        self._witness = Witness(problem, self.public, self.settings, self.clients, self.server, device)
        self._rounds: list[Round] = []
        self._received: tuple[Message, ...] = ()
        self._server: Predictions | None = None

    def _own_model(self) -> Stack:
        module = build_model(
            self.settings.server_spec(self.problem),
            self.problem.input_shape,
            self.problem.classes,
            self.seeds.generator("model"),
        )
        settings = self.settings
        return Stack(
            [module],
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            optimiser=settings.optimizer,
            device=self.device,
        )

    def begin(self) -> None:
        """Before round 1, after what comes before it."""
        self._witness.evaluate(0)

    def draw(self, index: int) -> Tensor:
        """The public examples of a round."""
        wanted, count = self.settings.alignment, len(self.public)
        if wanted is None or wanted >= count:
            return torch.arange(count)
        drawn = torch.randperm(count, generator=self.seeds.generator("alignment", "round", index))[:wanted]
        return drawn.sort().values

    def at(self, chosen: Tensor) -> Tensor:
        """The public inputs of these examples."""
        return self.inputs if len(chosen) == len(self.inputs) else self.inputs[chosen.to(self.device)]

    def receive(self, index: int, chosen: Tensor) -> Tensor:
        """Every client's predictions on these examples as they arrive, defended: (clients, n, classes)."""
        logits = self.clients.predict(self.at(chosen))
        self._witness.upload(index, logits)
        values = torch.softmax(logits, dim=-1) if self.settings.uploads == "probabilities" else logits
        messages, arrived = [], []
        for number, context in enumerate(self.clients.contexts(index, self.public)):
            payload = Predictions(values[number], self.settings.uploads, chosen)
            sent = self._defense.apply(payload, context, self.clients.message_rng(number, index))
            if not isinstance(sent, Predictions) or sent.values.shape != payload.values.shape:
                raise ShapeError(f"{context.client}: a defense must leave predictions of {tuple(payload.values.shape)}")
            if sent.scale != payload.scale or not torch.equal(sent.index.cpu(), payload.index):
                # The others read them as the protocol says, and a proof speaks of what the protocol sends.
                raise RefusedError(
                    f"{context.client}: a defense must leave {payload.scale} on the same public examples in the same "
                    f"order, found {sent.scale}; let it change `values` alone"
                )
            arrived.append(sent.values)
            messages.append(Message(context.client, _on_cpu(sent), self._told(context.client)))
        self._received = tuple(messages)
        return torch.stack(arrived)

    def server_predicts(self, index: int, chosen: Tensor) -> Tensor | None:
        """The server's own logits on these examples: written down as the attacker's own knowledge of this round."""
        if self.server is None:
            self._server = None
            return None
        logits = self.server.predict(self.at(chosen))[0]
        self._server = _on_cpu(Predictions(logits, "logits", chosen))
        self._witness.server(index, logits)
        return logits

    def server_learns(
        self,
        loss: Objective,
        inputs: Tensor,
        targets: Sequence[Tensor],
        epochs: int,
        index: int,
        *,
        goes_on: bool = False,
    ) -> None:
        """The server trains its own model on public examples; `goes_on`: the phase of training has begun before."""
        if self.server is not None:
            seeds = self.seeds.under("server", "round", index)
            order = batches_of(len(inputs), self.settings.public_batch_size, epochs, seeds.generator("public"))
            if not goes_on:
                self.settings.begin_phase(self.server)
            self.server.fit(loss, inputs, targets, [order], rng=seeds.generator("modules"))

    def close(self, index: int, broadcast: Predictions | None) -> None:
        """The end of a round in which `broadcast` was sent out."""
        if index <= self.settings.recorded_rounds():
            sent = None if broadcast is None else _on_cpu(broadcast)
            self._rounds.append(Round(index, sent, self._received, self._server))
        self._witness.evaluate(index)
        self._progress(index, self.settings.rounds)

    def recording(self) -> Recording:
        """What the server saw, and what only the evaluator knows."""
        return Recording(Transcript(self._setup(), tuple(self._rounds)), self._witness.truth())

    def _setup(self) -> Setup:
        problem, settings = self.problem, self.settings
        facts: dict[str, Any] = {
            "batch_size": settings.batch_size,
            "epochs": settings.epochs,
            "lr": settings.lr,
            "target_labels": self._targets(),
        }
        return Setup(
            model=settings.server_spec(problem),
            input_shape=problem.input_shape,
            classes=problem.classes,
            loss=problem.loss,
            normalisation=problem.normalisation,
            public=self.public,
            disclosed={key: value for key, value in facts.items() if key in settings.disclose},
        )

    def _targets(self) -> list[int]:
        return sorted(self.problem.targets) if self.problem.targets else held(self.problem)

    def _told(self, client: str) -> dict[str, Any]:
        labels = self.problem.clients[client].labels
        facts: dict[str, Any] = {
            "samples": len(labels),
            "label_counts": torch.bincount(labels, minlength=self.problem.classes).tolist(),
            "unique_labels": len(torch.unique(labels)),
        }
        return {key: value for key, value in facts.items() if key in self.settings.disclose}


def _on_cpu(sent: Predictions) -> Predictions:
    return replace(sent, values=sent.values.detach().to("cpu", copy=True), index=sent.index.cpu())
