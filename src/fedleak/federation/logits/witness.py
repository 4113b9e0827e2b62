"""What only the evaluator of a logit protocol knows: how good and how sure the models are, and whose data was whose."""

from __future__ import annotations

import torch
from torch import Tensor

from fedleak.federation.base import Problem
from fedleak.federation.logits.client import Clients
from fedleak.federation.logits.settings import LogitSettings
from fedleak.learning.objectives import entropy
from fedleak.learning.stacked import Stack
from fedleak.types import Examples, PublicSet, Truth

__all__ = ["Witness"]


class Witness:
    """Tests the clients' models along the way; nothing of it reaches the transcript.

    `Truth.predicted` holds the rounds that `predicted_rounds` names: a test of every model costs as much as training it
    where the test set is large.
    """

    def __init__(
        self,
        problem: Problem,
        public: PublicSet,
        settings: LogitSettings,
        clients: Clients,
        server: Stack | None,
        device: str,
    ) -> None:
        self._problem, self._public, self._settings = problem, public, settings
        self._clients, self._server_model = clients, server
        self._test = problem.normalisation.apply(problem.test.inputs).to(device)
        self._labels = problem.test.labels.to(device)
        self._evaluated, self._remembered = set(settings.evaluated_rounds()), set(settings.predicted_rounds())
        self._classes: tuple[int, Tensor] = (-1, torch.zeros(0))
        self._utility: list[float] = []
        self._correct = torch.zeros(0)
        self._predicted: dict[tuple[int, str], Tensor] = {}
        self._entropies: dict[str, Tensor] = {}

    def evaluate(self, index: int) -> None:
        """The clients' accuracy after a round."""
        if index in self._evaluated:
            right = (self._tested() == self._labels).to(torch.float32)
            self._correct = right.mean(dim=0).cpu()
            self._utility.append(float(right.double().mean()) if right.numel() else float("nan"))

    def upload(self, index: int, logits: Tensor) -> None:
        """The models behind the messages of a round, and their logits on the public examples before any defense."""
        if index not in self._remembered:
            return
        for name, classes in zip(self._clients.names, self._tested(), strict=True):
            self._predicted[(index, name)] = classes.to(torch.int16).cpu()
        if index == self._settings.recorded_rounds():
            own = torch.cat([entropy(one) for one in self._clients.predict_own()])
            self._entropies["client on public"] = entropy(logits).flatten().cpu()
            self._entropies["client on private"] = own.cpu()

    def server(self, index: int, logits: Tensor) -> None:
        """The server's own model at the moment it attacks, and its logits on the public examples."""
        if index == self._settings.recorded_rounds() and self._server_model is not None:
            own = self._clients.private_inputs()
            self._entropies["server on public"] = entropy(logits).cpu()
            self._entropies["server on private"] = torch.cat(
                [entropy(self._server_model.predict(inputs)[0]) for inputs in own]
            ).cpu()

    def _tested(self) -> Tensor:
        """(clients, test examples): the class that each client's model names. Worked out once for every state."""
        version, classes = self._classes
        if version != self._clients.version:
            shape = (len(self._clients), 0)
            classes = (
                self._clients.predict(self._test).argmax(dim=-1) if len(self._test) else self._labels.new_zeros(shape)
            )
            self._classes = (self._clients.version, classes)
        return classes

    def truth(self) -> Truth:
        clients = self._problem.clients
        owners = tuple(name for name, own in clients.items() for _ in range(len(own)))
        starts, used = 0, {}
        for name, own in clients.items():
            for index in range(1, self._settings.recorded_rounds() + 1):
                used[(index, name)] = torch.arange(starts, starts + len(own))
            starts += len(own)
        return Truth(
            private=Examples(
                torch.cat([own.inputs for own in clients.values()]), torch.cat([own.labels for own in clients.values()])
            ),
            owners=owners,
            used=used,
            test=self._problem.test,
            utility=tuple(self._utility),
            correct=self._correct,
            predicted=self._predicted,
            public=self._public,
            twins=self._problem.twins,
            entropies=self._entropies,
        )
