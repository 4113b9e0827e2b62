"""FedSGD: every round each client sends one gradient, and the server takes one step with their mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

import torch
from torch import Tensor

from fedleak.components import component
from fedleak.defenses.base import Defense
from fedleak.errors import RefusedError
from fedleak.federation.base import Problem, Settings
from fedleak.federation.client import Work
from fedleak.federation.server import Rules, Server, federate
from fedleak.learning.aggregate import weighted_mean
from fedleak.learning.batches import epoch_batches
from fedleak.learning.functional import Loss, Network
from fedleak.learning.sgd import GradientHook, Local, batch_gradient, momentum_step
from fedleak.seeding import Seeds
from fedleak.types import Gradients, Message, Named, Progress, Recording, Weights, silent

__all__ = ["FedSGD"]


@component
class FedSGD(Settings):
    """One gradient a round. `lr` and `momentum` are the server's.

    With `batch_size` a round uses one batch: drawn anew each round (`shuffle`), or the next in turn.

    Sees: the server sees each client's gradient and the weights it was taken at.
    Needs: a model whose training changes nothing but its parameters.
    Guarantees: nothing without a defense.
    """

    paper: ClassVar[str] = "McMahan et al. 2017 (FedSGD)"
    revision: ClassVar[int] = 2
    sends: ClassVar[type] = Gradients

    def __call__(
        self, problem: Problem, defense: Defense, seeds: Seeds, progress: Progress = silent, device: str = "cpu"
    ) -> Recording:
        rules = Rules(epochs=1, batching=self._batch, work=_gradient, pack=_pack, merge=self._merge)
        return federate(problem, self, rules, defense, seeds, progress, device)

    def _batch(self, count: int, round_index: int, rng: torch.Generator) -> tuple[Tensor, ...]:
        batches = epoch_batches(count, self.batch_size, rng if self.shuffle else None)
        return (batches[0 if self.shuffle else (round_index - 1) % len(batches)],)

    def _merge(self, server: Server, messages: Sequence[Message], samples: Sequence[int]) -> Server:
        mean = weighted_mean([cast(Gradients, m.payload).tensors for m in messages], samples)
        moved, velocity = momentum_step(server.model.tensors, mean, server.memory, self.lr, self.momentum)
        return Server(Weights(moved, server.model.buffers), velocity)


def _gradient(network: Network, loss: Loss) -> Work:
    def work(
        parameters: Named,
        buffers: Named,
        inputs: Tensor,
        targets: Tensor,
        batches: Sequence[Tensor],
        hook: GradientHook | None,
    ) -> Local:
        (batch,) = batches
        with torch.no_grad():
            return batch_gradient(network, loss, parameters, inputs[batch], targets[batch], buffers=buffers, hook=hook)

    return work


def _pack(local: Local, broadcast: Weights) -> Gradients:
    changed = [name for name, value in local.buffers.items() if not torch.equal(value, broadcast.buffers[name])]
    if changed:
        raise RefusedError(
            f"model: training changes its buffers ({', '.join(changed[:3])}), but FedSGD sends gradients only, so the "
            "global model would never learn them; use fedavg, or layers without running statistics (GroupNorm, or "
            "BatchNorm with track_running_stats=False)"
        )
    return Gradients(local.parameters)
