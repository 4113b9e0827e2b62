"""FedAvg: clients train locally for some epochs and send their weights; the server averages them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from fedleak.components import component
from fedleak.defenses.base import Defense
from fedleak.federation.base import Problem, Settings
from fedleak.federation.client import Work
from fedleak.federation.server import Rules, Server, federate
from fedleak.learning.aggregate import weighted_mean
from fedleak.learning.batches import schedule
from fedleak.learning.functional import Loss, Network
from fedleak.learning.sgd import GradientHook, Local, train
from fedleak.seeding import Seeds
from fedleak.types import Message, Named, Progress, Recording, Weights, silent

__all__ = ["FedAvg"]


@component
class FedAvg(Settings):
    """Local SGD over `epochs`, then the mean of the weights by number of samples. Momentum starts anew every round.

    Sees: the server sees each client's weights and those it started from.
    Needs: nothing.
    Guarantees: nothing without a defense.
    """

    paper: ClassVar[str] = "McMahan et al. 2017 (FedAvg)"
    revision: ClassVar[int] = 2
    sends: ClassVar[type] = Weights
    epochs: PositiveInt = Field(default=1, description="local epochs in a round")

    def __call__(
        self, problem: Problem, defense: Defense, seeds: Seeds, progress: Progress = silent, device: str = "cpu"
    ) -> Recording:
        rules = Rules(epochs=self.epochs, batching=self._batches, work=self._training, pack=_pack, merge=_merge)
        return federate(problem, self, rules, defense, seeds, progress, device)

    def _batches(self, count: int, round_index: int, rng: torch.Generator) -> tuple[Tensor, ...]:
        epochs = schedule(count, self.batch_size, self.epochs, rng if self.shuffle else None)
        return tuple(batch for epoch in epochs for batch in epoch)

    def _training(self, network: Network, loss: Loss) -> Work:
        def work(
            parameters: Named,
            buffers: Named,
            inputs: Tensor,
            targets: Tensor,
            batches: Sequence[Tensor],
            hook: GradientHook | None,
        ) -> Local:
            return train(
                network,
                loss,
                parameters,
                inputs,
                targets,
                batches,
                lr=self.lr,
                momentum=self.momentum,
                buffers=buffers,
                hook=hook,
            )

        return work


def _pack(local: Local, broadcast: Weights) -> Weights:
    return Weights(local.parameters, local.buffers)


def _merge(server: Server, messages: Sequence[Message], samples: Sequence[int]) -> Server:
    sent = [cast(Weights, m.payload) for m in messages]
    tensors = weighted_mean([w.tensors for w in sent], samples)
    return Server(Weights(tensors, weighted_mean([w.buffers for w in sent], samples)))
