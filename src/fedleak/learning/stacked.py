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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedleak.errors import RefusedError, ShapeError
from fedleak.factories import frozen_as_buffers
from fedleak.learning.functional import explained
from fedleak.learning.layout import as_given, as_rows, channels_first_is_slow, channels_last, copied
from fedleak.learning.optimisers import Optimiser, Rule
from fedleak.learning.replay import StepReplay
from fedleak.learning.turns import gathered, lent, lined_up

__all__ = ["Data", "Mode", "Objective", "Stack"]

Objective = Callable[..., Tensor]
"""(outputs, *targets) of one batch to a scalar mean."""

Data = Tensor | Sequence[Tensor]
"""One tensor (n, ...) that all networks share, or one tensor for each."""

Mode = Literal["auto", "loop", "streams", "stacked"]

ON_CUDA: Mode = "streams"

STREAMS = 16

CHANNELS_LAST_ON = frozenset({"cpu"})
"""Kinds of device on which pictures are laid out channels last for networks that pool (see layout.py)."""


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
        self._notes: dict[str, str] = {}
        chosen = mode if mode != "auto" else (ON_CUDA if self.device.type == "cuda" else "loop")
        self.mode: Mode = "loop" if chosen == "streams" and self.device.type != "cuda" else chosen
        self._parameters = as_rows([dict(module.named_parameters()) for module in self.modules])
        self._buffers = as_rows([dict(module.named_buffers()) for module in self.modules])
        for value in self._parameters.values():
            value.requires_grad_()
        rule = Rule(optimiser, lr, weight_decay, betas, epsilon, momentum)
        self._optimisers = [Optimiser(rule, list(module.parameters())) for module in self.modules]
        self._template = copy.deepcopy(self.modules[0])
        slow = self.device.type in CHANNELS_LAST_ON and channels_first_is_slow(self.modules[0])
        self._laid_out = channels_last if slow else as_given
        self._streams: list[Any] = []
        self._replay = StepReplay(self._together)

    def __len__(self) -> int:
        return len(self.modules)

    @property
    def notes(self) -> dict[str, str]:
        """What did not work as fast as it might have, and why."""
        return {**self._notes, **({"cuda_graph": self._replay.trouble} if self._replay.trouble else {})}

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
            for module in self.modules:
                module.train()
            self._template.train()
            for group in self._turns([[len(batch) for batch in own] for own in order]):
                picked = [batches[k][at[k]] for k in group]
                losses = self._replay(
                    tuple(group), loss, [gathered(data, group, picked) for data in given], self._worth_recording
                )
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
        for module in (*self.modules, self._template):
            module.train()
        given = [list(value.to(self.device)) for value in (inputs, *targets)]
        return self._replay(tuple(range(len(self))), loss, given, self._worth_recording)

    @property
    def _worth_recording(self) -> bool:
        return self.device.type == "cuda"

    def _turns(self, sizes: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        if self.mode == "loop" and not self._worth_recording:
            # Network by network: its weights stay in the cache.
            return ([k] for k, own in enumerate(sizes) for _ in own)
        return lined_up(sizes)

    def _together(self, group: tuple[int, ...], loss: Objective, given: Sequence[Sequence[Tensor]]) -> Tensor:
        """One step of the networks of a group: `given` holds, for inputs and each target, one batch for each."""
        if self.mode == "stacked" and len(group) == len(self) > 1:
            try:
                return self._stacked(loss, given)
            except (RuntimeError, NotImplementedError) as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                # A real fault of the module shows up again, in full, below.
                self._notes["stacked"] = f"not stacked ({type(error).__name__}: {error})"
                self.mode = "loop"
        if self.mode == "streams" and len(group) > 1:
            return self._in_streams(group, loss, given)
        return torch.stack([self._alone(k, loss, [of[at] for of in given]) for at, k in enumerate(group)])

    def _alone(self, k: int, loss: Objective, given: Sequence[Tensor]) -> Tensor:
        try:
            outputs = self.modules[k](self._laid_out(given[0]))
        except ValueError as problem:
            raise explained(problem) from None
        value = loss(outputs, *given[1:])
        # A layer that nothing goes through has a slope of zeros.
        self._optimisers[k].step(torch.autograd.grad(value, list(self.modules[k].parameters()), materialize_grads=True))
        return value.detach()

    def _in_streams(self, group: tuple[int, ...], loss: Objective, given: Sequence[Sequence[Tensor]]) -> Tensor:
        while len(self._streams) < min(len(self), STREAMS):
            self._streams.append(torch.cuda.Stream(self.device))  # type: ignore[no-untyped-call]
        here = torch.cuda.current_stream(self.device)
        values = []
        for at, k in enumerate(group):
            aside = self._streams[at % len(self._streams)]
            if at < len(self._streams):
                aside.wait_stream(here)
            with torch.cuda.stream(aside):
                values.append(self._alone(k, loss, [of[at] for of in given]))
        for aside in self._streams[: len(group)]:
            here.wait_stream(aside)
        return torch.stack(values)

    def _stacked(self, loss: Objective, given: Sequence[Sequence[Tensor]]) -> Tensor:
        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, *y: Tensor) -> Tensor:
            return loss(functional_call(self._template, (parameters, buffers), (x,)), *y)

        rows = [torch.stack(list(of)) for of in given]
        values = vmap(one, randomness="different")(self._parameters, self._buffers, *rows)
        # The networks share nothing, so the gradient of the sum is each network's own.
        slopes = torch.autograd.grad(values.sum(), list(self._parameters.values()), materialize_grads=True)
        for k, optimiser in enumerate(self._optimisers):
            optimiser.step([slope[k] for slope in slopes])
        return values.detach()

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
                rows.append(torch.cat([module(self._laid_out(part)) for part in torch.split(own, batch_size)]))
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
