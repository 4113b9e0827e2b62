"""FedMD: clients send their predictions on public examples, the server their mean, and clients digest it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from fedleak.components import component
from fedleak.defenses.base import Defense
from fedleak.federation.base import Problem
from fedleak.federation.logits.aggregation import as_probabilities, mean_of
from fedleak.federation.logits.exchange import Exchange
from fedleak.federation.logits.settings import LogitSettings
from fedleak.learning.functional import cross_entropy, loss_named
from fedleak.learning.objectives import absolute_error
from fedleak.learning.stacked import Objective
from fedleak.seeding import Seeds
from fedleak.types import Predictions, Progress, Recording, silent

__all__ = ["FedMD"]


@component
class FedMD(LogitSettings):
    """Before round 1 clients train on the labelled public set, then on their own examples. In
    each round they send their predictions, get the mean back, digest it (`public_epochs`, by default the L1 distance to
    it), and revisit their own examples (`epochs`); the server trains a model of its own on the labelled public set.

    The server's own predictions of a round are those it has when it attacks, on receipt of the messages: before its
    model's training of that round, so those of round 1 are of an untrained model (algorithm 1). `Round.broadcast` is
    the mean that was sent out in that round.

    With `public_labels` off nobody uses the public labels: no transfer epochs, and the server learns the mean.
    Presets: "paper"; "released", the authors' code (weight decay, no digest where there is one client); "adamsa", the
    federation of AdaMSA's paper (no labels, probabilities, cross-entropy to their mean, Adam 0.01, no server model; its
    epochs are our choice, since the paper gives none).

    Sees: the server sees each client's predictions on the public examples.
    Needs: a public set; labels on it unless `public_labels` is off.
    Guarantees: nothing without a defense.
    """

    paper: ClassVar[str] = "Li and Wang 2019; Takahashi et al. 2023, Breaching FedMD, algorithm S-1"
    revision: ClassVar[int] = 1
    sends: ClassVar[type] = Predictions
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "released": {"weight_decay": 1e-4, "digest_alone": False},
        "adamsa": {
            "rounds": 10,
            "lr": 0.01,
            "batch_size": 10,
            "public_batch_size": 128,
            "uploads": "probabilities",
            "public_labels": False,
            "digest_loss": "cross_entropy",
            "server_epochs": 0,
            "epochs": 5,
        },
    }
    preset: Literal["paper", "released", "adamsa"] = Field(
        default="paper", description="whose settings fill in the rest"
    )
    transfer_epochs: NonNegativeInt = Field(default=5, description="epochs on the labelled public set before round 1")
    first_epochs: NonNegativeInt = Field(default=5, description="private epochs before round 1")
    public_epochs: NonNegativeInt = Field(default=1, description="epochs of digesting the mean in a round")
    epochs: PositiveInt = Field(default=1, description="private epochs in a round, after the digest")
    digest_loss: Literal["l1", "cross_entropy"] = Field(default="l1", description="distance from the mean")
    digest_alone: bool = Field(default=True, description="digest also where there is one client, whose mean is its own")
    public_labels: bool = Field(default=True, description="use the labels of the public set")

    @property
    def uses_public_labels(self) -> bool:
        return self.public_labels

    def __call__(
        self, problem: Problem, defense: Defense, seeds: Seeds, progress: Progress = silent, device: str = "cpu"
    ) -> Recording:
        run = Exchange(problem, self, defense, seeds, progress, device, name="fedmd")
        clients, private_loss, digest = run.clients, loss_named(problem.loss), self._digest()
        if self.public_labels and run.labels is not None:
            clients.learn_public(cross_entropy, run.inputs, [run.labels], self.transfer_epochs, 0)
        clients.learn_private(private_loss, self.first_epochs, 0)
        run.begin()
        for index in range(1, run.settings.rounds + 1):
            chosen = run.draw(index)
            mean = mean_of(run.receive(index, chosen))
            run.server_predicts(index, chosen)
            if len(clients) > 1 or self.digest_alone:
                clients.learn_public(digest, run.at(chosen), [self._target(mean)], self.public_epochs, index)
            clients.learn_private(private_loss, self.epochs, index)
            if self.public_labels and run.labels is not None:
                run.server_learns(cross_entropy, run.inputs, [run.labels], self.server_epochs, index)
            else:
                run.server_learns(digest, run.at(chosen), [self._target(mean)], self.server_epochs, index)
            run.close(index, Predictions(mean, self.uploads, chosen))
        return run.recording()

    def _target(self, mean: Tensor) -> Tensor:
        return as_probabilities(mean, self.uploads) if self.digest_loss == "cross_entropy" else mean

    def _digest(self) -> Objective:
        if self.digest_loss == "cross_entropy":
            return cross_entropy
        return absolute_error if self.uploads == "logits" else _absolute_error_of_probabilities


def _absolute_error_of_probabilities(outputs: Tensor, targets: Tensor) -> Tensor:
    return absolute_error(torch.softmax(outputs, dim=-1), targets)
