"""Many networks of one architecture, trained at once: the clients of a federation, inversion networks, stolen models.

    stack = Stack([build_model(spec, shape, classes, rng) for _ in range(10)], lr=1e-3, device=device)
    order = [epoch_batches(len(inputs), 64, rng) for _ in range(10)]     # each network has an order of its own
    stack.fit(cross_entropy, inputs, [labels], order)                    # shared data: a tensor
    stack.fit(l1, [x_0, ..., x_9], [[y_0, ..., y_9]], order)             # data of each network: a sequence of tensors
    outputs = stack.predict(inputs)                                      # (10, n, classes), eval mode, on the device
    kept = stack.state(); stack.load(kept)                               # a checkpoint: weights, buffers, optimiser

Every network has an optimiser of its own (torch's Adam or SGD, with torch's L2 weight decay), which lives as long as
the stack: calls of `fit` with different losses go on with the same moments, `reset_optimisers` forgets them.
A loss is a function of (outputs, *targets) to the scalar mean of a batch; hand in the same function object every time,
for a recorded step is found again by it, and let it take its tensors from its arguments only.

How the networks are trained (`mode`) changes speed, not the result beyond rounding:
    loop      one network after the other: what is fastest on a CPU
    streams   each network on a CUDA stream of its own
    stacked   one `torch.func.vmap` over stacked parameters
    auto      loop on a CPU, ON_CUDA on a GPU
On a GPU a step that comes often is recorded as a CUDA graph and replayed; where that fails, `notes` says why and the
steps are computed one by one. Nothing is read back from the device during training.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedleak.errors import RefusedError, ShapeError
from fedleak.factories import frozen_as_buffers
from fedleak.learning.layout import copied
from fedleak.learning.optimisers import Rule
from fedleak.learning.steps import Mode, Objective, Steps
from fedleak.learning.turns import gathered, lent, lined_up

__all__ = ["Data", "Mode", "Objective", "Stack"]

Data = Tensor | Sequence[Tensor]
"""One tensor (n, ...) that all networks share, or one tensor for each."""


class Stack:
    """Networks of one architecture with stacked parameters. `modules` are live copies of what was given."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        *,
        lr: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        optimiser: Literal["adam", "sgd"] = "adam",
        momentum: float = 0.0,
        device: str | torch.device = "cpu",
        mode: Mode = "auto",
    ) -> None:
        if not modules:
            raise RefusedError("modules=0: a stack needs at least one network")
        self.modules = [frozen_as_buffers(copy.deepcopy(module)).to(device) for module in modules]
        self.device = torch.device(device)
        rule = Rule(optimiser, lr, weight_decay, betas, epsilon, momentum)
        self._steps = Steps(self.modules, rule, self.device, mode)
        self._optimisers = self._steps.optimisers

    def __len__(self) -> int:
        return len(self.modules)

    @property
    def mode(self) -> Mode:
        """How steps are taken: never "auto", and "loop" once the networks turned out not to stack."""
        return self._steps.mode

    @property
    def notes(self) -> dict[str, str]:
        """What did not work as fast as it might have, and why."""
        return self._steps.notes

    def reset_optimisers(self) -> None:
        """Forget all moments, as a new optimiser would."""
        for optimiser in self._optimisers:
            optimiser.forget()

    # --- training -------------------------------------------------------------------------------------------------

    def fit(
        self,
        loss: Objective,
        inputs: Data,
        targets: Sequence[Data],
        order: Sequence[Sequence[Tensor]],
        *,
        rng: torch.Generator | None = None,
    ) -> Tensor:
        """Train network k on the index batches `order[k]`, in order; their numbers and sizes may differ.

        Gives each network's mean loss over its steps (0 without a step), on the device. `rng` seeds what modules draw
        from torch's global generator (dropout), which is given back as it was.
        """
        count = len(self)
        if len(order) != count:
            raise ShapeError(f"order: {len(order)} lists of batches for {count} networks; give one for each")
        given = [self._each(data) for data in (inputs, *targets)]
        batches = [self._on_device(own) for own in order]
        total = torch.zeros(count, device=self.device)
        at = [0] * count
        with lent(rng, self.device):
            self._steps.begin()
            for group in self._turns([[len(batch) for batch in own] for own in order]):
                picked = [batches[k][at[k]] for k in group]
                losses = self._steps(tuple(group), loss, [gathered(data, group, picked) for data in given])
                if len(group) == count:
                    total += losses
                for place, k in enumerate(group):
                    at[k] += 1
                    if len(group) < count:  # one number at a time: a list of indices would go to the device and wait
                        total[k] += losses[place]
        return total / torch.tensor([max(1, len(own)) for own in order], device=self.device)

    def step(self, loss: Objective, inputs: Tensor, *targets: Tensor) -> Tensor:
        """One step of every network on its own batch: inputs (K, B, ...), targets (K, B, ...); the losses (K,)."""
        for value in (inputs, *targets):
            if len(value) != len(self):
                raise ShapeError(f"step: a tensor of {len(value)} batches for {len(self)} networks; give one for each")
        self._steps.begin()
        given = [list(value.to(self.device)) for value in (inputs, *targets)]
        return self._steps(tuple(range(len(self))), loss, given)

    def _turns(self, sizes: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        if self.mode == "loop" and self.device.type != "cuda":
            # Network by network: its weights stay in the cache.
            return ([k] for k, own in enumerate(sizes) for _ in own)
        return lined_up(sizes)

    # --- use ------------------------------------------------------------------------------------------------------

    def predict(self, inputs: Data, batch_size: int = 1024) -> Tensor:
        """Outputs of every network in eval mode, without gradients: (K, n, ...) on the device.

        With a sequence of inputs, one tensor for each network, these must be of one length; else `predict_each`.
        """
        return torch.stack(self.predict_each(inputs, batch_size))

    def predict_each(self, inputs: Data, batch_size: int = 1024) -> list[Tensor]:
        """The same, network by network: each may have as many inputs as it likes."""
        rows = []
        with torch.no_grad():
            for module, own in zip(self.modules, self._each(inputs), strict=True):
                module.eval()
                rows.append(torch.cat([module(self._steps.laid_out(part)) for part in torch.split(own, batch_size)]))
        return rows

    def weights(self, k: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Parameters and buffers of network k: copies, on the device, ordered as in the module."""
        module = self.modules[k]
        return (
            {name: value.detach().clone() for name, value in module.named_parameters()},
            {name: value.detach().clone() for name, value in module.named_buffers()},
        )

    def state(self) -> dict[str, Any]:
        """All that `load` needs to go on from here, as copies on the CPU."""
        held = {
            "networks": [module.state_dict() for module in self.modules],
            "optimisers": [optimiser.state() for optimiser in self._optimisers],
        }
        kept: dict[str, Any] = copied(held)
        return kept

    def load(self, state: Mapping[str, Any]) -> None:
        """Put back what `state` gave."""
        if len(state["networks"]) != len(self):
            raise ShapeError(f"state: of {len(state['networks'])} networks, but this stack has {len(self)}")
        for module, optimiser, own, moments in zip(
            self.modules, self._optimisers, state["networks"], state["optimisers"], strict=True
        ):
            module.load_state_dict(own)
            optimiser.load(moments)

    # --- tensors --------------------------------------------------------------------------------------------------

    def _each(self, data: Data) -> list[Tensor]:
        if isinstance(data, Tensor):
            return [data.to(self.device)] * len(self)
        if len(data) != len(self):
            raise ShapeError(f"{len(data)} tensors for {len(self)} networks: give one for each, or one for all")
        return [own.to(self.device) for own in data]

    def _on_device(self, batches: Sequence[Tensor]) -> Sequence[Tensor]:
        if self.device.type == "cpu" or not batches:
            return batches
        # One transfer for all of them.
        return torch.split(torch.cat(list(batches)).to(self.device), [len(batch) for batch in batches])
