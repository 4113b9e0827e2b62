"""FedGEMS: a server model learns selectively from labels, from its own past and from clients that are right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from fedleak.components import component
from fedleak.defenses.base import Defense
from fedleak.federation.base import Problem
from fedleak.federation.logits.aggregation import ensemble, teachers
from fedleak.federation.logits.exchange import Exchange
from fedleak.federation.logits.settings import LogitSettings
from fedleak.learning.functional import cross_entropy, loss_named
from fedleak.learning.objectives import divergence
from fedleak.learning.stacked import Objective
from fedleak.seeding import Seeds
from fedleak.types import Predictions, Progress, Recording, silent

__all__ = ["FedGEMS", "guided", "selective"]


@component
class FedGEMS(LogitSettings):
    """In each round the server trains its model selectively on the labelled public set with
    what clients sent, and sends out its logits; clients train on the public set with them (`public_epochs`), then on
    their own examples (`epochs`), and send their predictions.

    Selective: an example that the server gets right is learnt from its label, and its prediction is stored; one that it
    gets wrong is learnt with epsilon * cross-entropy + (1 - epsilon) * KL to the stored prediction, or where there is
    none to the clients that are right, weighted by softmax(1 / entropy). Right or wrong is decided when the example is
    trained on; predictions are stored at the end of an epoch (the original stores them in passing). KL is the mean over
    examples of the sum over classes; the released code's mean over both makes it as many times smaller as there are
    classes.

    `order` "paper" is as above, so nothing of clients is known to the server in round 1; "released": clients train on
    their own examples and send, then the server trains and sends, then clients train on the public set.
    The server's own predictions of a round are those that it sent out in it: `Round.broadcast`.

    Sees: the server sees each client's predictions on the public examples.
    Needs: a labelled public set.
    Guarantees: nothing without a defense.
    """

    paper: ClassVar[str] = "Cheng et al. 2021; Takahashi et al. 2023, Breaching FedMD, algorithm S-2"
    revision: ClassVar[int] = 1
    sends: ClassVar[type] = Predictions
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "released": {"order": "released", "weight_decay": 1e-4},
    }
    preset: Literal["paper", "released"] = Field(default="paper", description="whose settings fill in the rest")
    epochs: PositiveInt = Field(default=2, description="private epochs in a round")
    public_epochs: NonNegativeInt = Field(default=2, description="clients' epochs on the public set in a round")
    server_epochs: PositiveInt = Field(default=1, description="the server's epochs on the public set in a round")
    epsilon: float = Field(default=0.75, ge=0, le=1, description="share of the label beside the teacher")
    order: Literal["paper", "released"] = Field(default="paper", description="who trains first in a round")

    @property
    def uses_public_labels(self) -> bool:
        return True

    def __call__(
        self, problem: Problem, defense: Defense, seeds: Seeds, progress: Progress = silent, device: str = "cpu"
    ) -> Recording:
        run = Exchange(problem, self, defense, seeds, progress, device, name="fedgems")
        server, private_loss, loss = _Selective(run, self), loss_named(problem.loss), guided(self.epsilon)
        assert run.labels is not None
        run.begin()
        sent: tuple[Tensor, Tensor] | None = None
        for index in range(1, run.settings.rounds + 1):
            chosen = run.draw(index)
            place = chosen.to(device)
            if self.order == "released":
                run.clients.learn_private(private_loss, self.epochs, index)
                sent = run.receive(index, chosen), place
            server.learn(place, sent, index)
            logits = run.server_predicts(index, chosen)
            assert logits is not None
            told = [run.labels[place], torch.softmax(logits, dim=-1)]
            run.clients.learn_public(loss, run.at(chosen), told, self.public_epochs, index)
            if self.order == "paper":
                run.clients.learn_private(private_loss, self.epochs, index)
                sent = run.receive(index, chosen), place
            run.close(index, Predictions(logits, "logits", chosen))
        return run.recording()


class _Selective:
    """The server's training, and the predictions that it stored when it was right."""

    def __init__(self, run: Exchange, settings: FedGEMS) -> None:
        self._run, self._settings, self._loss = run, settings, selective(settings.epsilon)
        count, classes = len(run.public), run.problem.classes
        self._stored = torch.zeros(count, classes, device=run.device)
        self._has = torch.zeros(count, dtype=torch.bool, device=run.device)

    def learn(self, place: Tensor, sent: tuple[Tensor, Tensor] | None, index: int) -> None:
        """Some epochs on the public examples `place`; `sent` is what clients said, and about which examples."""
        run = self._run
        assert run.labels is not None
        assert run.server is not None
        together = torch.zeros_like(self._stored)
        known = torch.zeros_like(self._has)
        if sent is not None:
            values, about = sent
            together[about], known[about] = ensemble(values, run.labels[about], self._settings.uploads)
        for epoch in range(self._settings.server_epochs):
            teacher, taught = teachers(self._stored[place], self._has[place], together[place], known[place])
            inputs, labels = run.at(place), run.labels[place]
            # A round of several epochs: each has an order of its own, under a number of its own.
            number = (index - 1) * self._settings.server_epochs + epoch + 1
            run.server_learns(self._loss, inputs, [labels, teacher, taught], 1, number, goes_on=epoch > 0)
            logits = run.server.predict(inputs)[0]
            right = logits.argmax(dim=-1) == labels
            self._stored[place] = torch.where(right[:, None], torch.softmax(logits, dim=-1), self._stored[place])
            self._has[place] |= right


def guided(epsilon: float) -> Objective:
    """epsilon * cross-entropy to the labels + (1 - epsilon) * KL to a teacher's probabilities."""

    def loss(outputs: Tensor, labels: Tensor, teacher: Tensor) -> Tensor:
        return epsilon * cross_entropy(outputs, labels) + (1 - epsilon) * divergence(outputs, teacher)

    return loss


def selective(epsilon: float) -> Objective:
    """The server's loss: `guided` where it is wrong and has a teacher (`taught`), else cross-entropy."""

    def loss(outputs: Tensor, labels: Tensor, teacher: Tensor, taught: Tensor) -> Tensor:
        log = F.log_softmax(outputs, dim=-1)
        plain = F.nll_loss(log, labels, reduction="none")
        apart = F.kl_div(log, teacher, reduction="none").sum(dim=-1)
        listens = taught & (outputs.argmax(dim=-1) != labels)
        return torch.where(listens, epsilon * plain + (1 - epsilon) * apart, plain).mean()

    return loss
