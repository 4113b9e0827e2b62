"""DS-FL: clients send their predictions on unlabelled public examples, and all learn their sharpened mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from fedleak.components import component
from fedleak.defenses.base import Defense
from fedleak.federation.base import Problem
from fedleak.federation.logits.aggregation import sharpened
from fedleak.federation.logits.exchange import Exchange
from fedleak.federation.logits.settings import LogitSettings
from fedleak.learning.functional import cross_entropy, loss_named
from fedleak.seeding import Seeds
from fedleak.types import Predictions, Progress, Recording, silent

__all__ = ["DSFL"]


@component
class DSFL(LogitSettings):
    """In each round clients train on their own examples (`epochs`) and send their predictions;
    the server sharpens the mean (entropy reduction aggregation, softmax(mean / `temperature`)), and clients
    (`public_epochs`) and the server's own model (`server_epochs`) learn it with cross-entropy.

    The server's own predictions of a round are those it has on receipt of the messages, before it learns their mean:
    those of round 1 are of an untrained model. `Round.broadcast` is the sharpened mean that was sent out in that round.

    Presets: "paper" sends logits; "released", the authors' code, probabilities, with weight decay and without the
    distillation where there is one client.

    Sees: the server sees each client's predictions on the public examples.
    Needs: a public set; labels on it are not used.
    Guarantees: nothing without a defense.
    """

    paper: ClassVar[str] = "Itahara et al. 2021; Takahashi et al. 2023, Breaching FedMD, algorithm S-3"
    revision: ClassVar[int] = 1
    sends: ClassVar[type] = Predictions
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "released": {"uploads": "probabilities", "weight_decay": 1e-4, "digest_alone": False},
    }
    preset: Literal["paper", "released"] = Field(default="paper", description="whose settings fill in the rest")
    epochs: PositiveInt = Field(default=2, description="private epochs in a round, before the upload")
    public_epochs: NonNegativeInt = Field(default=2, description="epochs of learning the sharpened mean in a round")
    temperature: PositiveFloat = Field(default=0.1, description="what the mean is divided by before the softmax")
    digest_alone: bool = Field(default=True, description="learn the mean also where there is one client, its own")

    def __call__(
        self, problem: Problem, defense: Defense, seeds: Seeds, progress: Progress = silent, device: str = "cpu"
    ) -> Recording:
        run = Exchange(problem, self, defense, seeds, progress, device, name="dsfl")
        clients, private_loss = run.clients, loss_named(problem.loss)
        run.begin()
        for index in range(1, run.settings.rounds + 1):
            clients.learn_private(private_loss, self.epochs, index)
            chosen = run.draw(index)
            sharp = sharpened(run.receive(index, chosen), self.temperature)
            run.server_predicts(index, chosen)
            if len(clients) > 1 or self.digest_alone:
                clients.learn_public(cross_entropy, run.at(chosen), [sharp], self.public_epochs, index)
            run.server_learns(cross_entropy, run.at(chosen), [sharp], self.server_epochs, index)
            run.close(index, Predictions(sharp, "probabilities", chosen))
        return run.recording()
