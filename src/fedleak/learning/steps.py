"""A training step of some networks of a stack: one after the other, on CUDA streams, or stacked in one `vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedleak.learning.functional import explained
from fedleak.learning.layout import apart, as_given, as_rows, channels_first_is_slow, channels_last
from fedleak.learning.optimisers import Optimiser, Rule
from fedleak.learning.replay import StepReplay

__all__ = ["Mode", "Objective", "Steps"]

Objective = Callable[..., Tensor]
"""(outputs, *targets) of one batch to a scalar mean."""

Mode = Literal["auto", "loop", "streams", "stacked"]
"""See stacked.py."""

ON_CUDA: Mode = "streams"

STREAMS = 16

CHANNELS_LAST_ON = frozenset({"cpu"})
"""Kinds of device on which pictures are laid out channels last for networks that pool (see layout.py)."""


class Steps:
    """Moves `modules`, whose tensors become rows of stacked ones, each by an optimiser of its own."""

    def __init__(self, modules: Sequence[nn.Module], rule: Rule, device: torch.device, mode: Mode) -> None:
        self.modules, self._device = modules, device
        self._trouble: dict[str, str] = {}
        chosen = mode if mode != "auto" else (ON_CUDA if device.type == "cuda" else "loop")
        self.mode: Mode = "loop" if chosen == "streams" and device.type != "cuda" else chosen
        self._parameters = as_rows([dict(module.named_parameters()) for module in modules])
        self._buffers = as_rows([dict(module.named_buffers()) for module in modules])
        for value in self._parameters.values():
            value.requires_grad_()
        self.optimisers = [Optimiser(rule, list(module.parameters())) for module in modules]
        self._template = apart(modules[0])
        slow = device.type in CHANNELS_LAST_ON and channels_first_is_slow(modules[0])
        self.laid_out = channels_last if slow else as_given
        self._streams: list[Any] = []
        self._replay = StepReplay(self._together)

    @property
    def notes(self) -> dict[str, str]:
        """What did not work as fast as it might have, and why."""
        return {**self._trouble, **({"cuda_graph": self._replay.trouble} if self._replay.trouble else {})}

    def begin(self) -> None:
        """Before training, and after the networks were used in eval mode."""
        for module in (*self.modules, self._template):
            module.train()

    def __call__(self, group: tuple[int, ...], loss: Objective, given: Sequence[Sequence[Tensor]]) -> Tensor:
        """One step of the networks of a group, and their losses: `given` holds, for inputs and each target, one batch
        for each."""
        return self._replay(group, loss, given, self._device.type == "cuda")

    def _together(self, group: tuple[int, ...], loss: Objective, given: Sequence[Sequence[Tensor]]) -> Tensor:
        if self.mode == "stacked" and len(group) == len(self.modules) > 1:
            try:
                return self._stacked(loss, given)
            except (RuntimeError, NotImplementedError) as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                # A real fault of the module shows up again, in full, below.
                self._trouble["stacked"] = f"not stacked ({type(error).__name__}: {error})"
                self.mode = "loop"
        if self.mode == "streams" and len(group) > 1:
            return self._in_streams(group, loss, given)
        return torch.stack([self._alone(k, loss, [of[at] for of in given]) for at, k in enumerate(group)])

    def _alone(self, k: int, loss: Objective, given: Sequence[Tensor]) -> Tensor:
        try:
            outputs = self.modules[k](self.laid_out(given[0]))
        except ValueError as problem:
            raise explained(problem) from None
        value = loss(outputs, *given[1:])
        # A layer that nothing goes through has a slope of zeros.
        self.optimisers[k].step(torch.autograd.grad(value, list(self.modules[k].parameters()), materialize_grads=True))
        return value.detach()

    def _in_streams(self, group: tuple[int, ...], loss: Objective, given: Sequence[Sequence[Tensor]]) -> Tensor:
        while len(self._streams) < min(len(self.modules), STREAMS):
            self._streams.append(torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]
        here = torch.cuda.current_stream(self._device)
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
        for k, optimiser in enumerate(self.optimisers):
            optimiser.step([slope[k] for slope in slopes])
        return values.detach()
