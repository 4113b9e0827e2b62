"""Training the inversion networks of all clients at once: one stack, one Adam, a CUDA graph where there is a GPU.

A step is bound by the memory that Adam moves (43.8 million parameters a client at 1000 classes), so all networks take
it in one fused kernel, and their transposed convolutions are batched matrix products. On a CPU the same stack is as
fast as torch's layers one network after the other (0.6 to 1.1 times the time of a step), so there is no second way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedleak.attacks.logits.network import InversionNetwork
from fedleak.learning.precision import Precision, products_in
from fedleak.learning.replay import StepReplay

__all__ = ["InversionStack", "Material", "Norm", "Objective"]

Norm = Literal["mse", "norm"]
"""mse: mean squared error, as released. norm: the unsquared norm that the equations print, mean over the batch."""


@dataclass(frozen=True, eq=False)
class Material:
    """What networks learn from: `inputs` (networks, n, numbers), and for each of the n the picture it shows, row
    `shows` of `pictures` (m, height, width, channels), and what was believed before, row `believed` of `priors`."""

    inputs: Tensor
    pictures: Tensor
    shows: Tensor
    priors: Tensor | None = None
    believed: Tensor | None = None

    def __len__(self) -> int:
        return int(self.inputs.shape[1])


@dataclass(frozen=True)
class Objective:
    """Eq. 3: the distance to the true picture, and gamma times that to the prior. `prior_only` is eq. 10: the prior is
    all that is given. `train`: batches are normalised by themselves."""

    distance: Norm = "mse"
    gamma: float = 0.0
    prior_only: bool = False
    train: bool = True

    def __call__(self, made: Tensor, *aims: Tensor) -> Tensor:
        if self.prior_only:
            return self.gamma * self._far(made, aims[0])
        value = self._far(made, aims[0])
        return value if len(aims) == 1 else value + self.gamma * self._far(made, aims[1])

    def _far(self, made: Tensor, aim: Tensor) -> Tensor:
        """One mean a network; `aim` (n, ...) is the same for all."""
        squared = (made - aim).square()
        if self.distance == "norm":
            return squared.flatten(2).sum(dim=2).sqrt().mean(dim=1)
        return squared.mean(dim=(1, 2, 3, 4))


class InversionStack:
    """Inversion networks of one size, a seed for each, that take every step together."""

    def __init__(
        self,
        network: InversionNetwork,
        seeds: Sequence[int],
        *,
        lr: float,
        weight_decay: float,
        device: torch.device | str,
        precision: Precision = "tf32",
    ) -> None:
        self.network, self.precision = network, precision
        self.device = torch.device(device)
        self.parameters = {
            name: value.requires_grad_() for name, value in network.parameters(seeds, self.device).items()
        }
        self.buffers = {name: value.to(self.device) for name, value in network.buffers(len(seeds)).items()}
        # Adam works number by number: one over stacked parameters is one for each network.
        self._adam = torch.optim.Adam(
            list(self.parameters.values()),
            lr=lr,
            weight_decay=weight_decay,
            fused=True,
            capturable=self.device.type == "cuda",
        )
        self._count = len(seeds)
        self._replay = StepReplay(self._step)

    def __len__(self) -> int:
        return self._count

    @property
    def trouble(self) -> str:
        """Why steps are not replayed as a CUDA graph; empty where they are, and on a CPU."""
        return self._replay.trouble

    def fit(self, material: Material, batches: Sequence[Tensor], objective: Objective) -> Tensor:
        """One step for every batch of indices into the material. The mean loss of each network, on the device."""
        total = torch.zeros(len(self), device=self.device)
        with products_in(self.precision):
            for index in batches:
                shown = material.shows.index_select(0, index)
                given = [material.inputs.index_select(1, index), material.pictures.index_select(0, shown)]
                if material.priors is not None and material.believed is not None:
                    given.append(material.priors.index_select(0, material.believed.index_select(0, index)))
                total += self._replay((0,), objective, [[one] for one in given], self.device.type == "cuda")
        return total / max(1, len(batches))

    def fit_to_priors(self, inputs: Tensor, priors: Tensor, objective: Objective) -> None:
        """One step of eq. 10 for inputs (n, numbers) that all networks share."""
        given = [inputs.expand(len(self), -1, -1), priors]
        with products_in(self.precision):
            self._replay((0,), objective, [[one] for one in given], self.device.type == "cuda")

    def show(self, inputs: Tensor) -> Tensor:
        """Pixels (networks, n, C, H, W) for inputs (n, numbers) that all networks share."""
        with torch.no_grad(), products_in(self.precision):
            made = self.network(self.parameters, self.buffers, inputs.expand(len(self), -1, -1), train=False)
        return (made.permute(0, 1, 4, 2, 3) + 1) / 2

    def _step(
        self, group: tuple[int, ...], objective: Callable[..., Tensor], given: Sequence[Sequence[Tensor]]
    ) -> Tensor:
        assert isinstance(objective, Objective)
        inputs, *aims = (one[0] for one in given)
        made = self.network(self.parameters, self.buffers, inputs, train=objective.train)
        losses = objective(made, *aims)
        values = list(self.parameters.values())
        # The networks share nothing, so the gradient of the sum is each network's own.
        for value, slope in zip(values, torch.autograd.grad(losses.sum(), values), strict=True):
            value.grad = slope.contiguous()
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        return losses.detach()
