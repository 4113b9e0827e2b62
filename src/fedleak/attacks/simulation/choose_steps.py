"""How a module's steps are computed: the fastest way that agrees with autograd, one victim at a time."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from fedleak.attacks.simulation.conv_layers import Layers, layers_of
from fedleak.attacks.simulation.generic_steps import LoneSteps, MappedSteps, Steps
from fedleak.attacks.simulation.tiled_steps import TiledSteps
from fedleak.errors import RefusedError
from fedleak.learning.functional import Loss, Network
from fedleak.types import Named

__all__ = ["Choice", "choose", "first_line"]

SAME = 1e-2
"""How far two computations of the same slope may be apart, as a share: far above rounding, far below a wrong one."""


@dataclass(frozen=True, eq=False)
class Choice:
    """The steps, in words how they are computed, why not faster, and what a victim takes of a GPU's memory: bytes that
    each step keeps, and bytes while it is computed."""

    steps: Steps
    engine: str
    fallback: str = ""
    kept: int = 0
    at_work: int = 0


def choose(network: Network, loss: Loss, weights: Named, lr: float, images: Tensor, labels: Tensor) -> Choice:
    """Tries the ways on two victims with a batch like `images` (m, C, H, W) with `labels` (m,)."""
    ramp = torch.linspace(-1, 1, 2 * images.numel(), dtype=images.dtype, device=images.device)
    batch = ramp.reshape(2, *images.shape), labels.expand(2, -1)
    lone = LoneSteps(network, loss, weights, lr)
    try:
        expected, *memory = _one_step(lone, weights, *batch)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a user's module may raise anything
        raise RefusedError(
            f"model: its gradient cannot be differentiated with respect to the inputs ({first_line(error)}); "
            "the simulation needs a module that is twice differentiable"
        ) from error
    ways: list[tuple[str, Steps]] = [("mapped", MappedSteps(network, loss, weights, lr))]
    layers = layers_of(network.module, loss)
    if layers is not None:
        ways.insert(0, ("written out", TiledSteps(layers, weights, tuple(images.shape[1:]), lr)))
        ways[:0] = _fused(layers, weights, lr, images)
    trouble = ""
    for name, steps in ways:
        try:
            found, kept, at_work = _one_step(steps, weights, *batch)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            trouble = first_line(error)
            continue
        apart = torch.linalg.vector_norm(found - expected)
        # Weights that are not finite say nothing about the way.
        if apart <= SAME * torch.linalg.vector_norm(expected) or not bool(expected.isfinite().all()):
            return Choice(steps, name, "", kept, at_work)
        # torch maps some layers to other second derivatives than theirs (BatchNorm on batch statistics).
        trouble = "its mapped derivatives are wrong"
    fallback = f"victims one by one: the module cannot be mapped over them ({trouble})"
    return Choice(lone, "one by one", fallback, memory[0], memory[1])


def _fused(layers: Layers, weights: Named, lr: float, images: Tensor) -> list[tuple[str, Steps]]:
    """Steps in kernels of our own, for float32 on a GPU where Triton is installed, as it is with torch on Linux."""
    if not images.is_cuda or images.dtype != torch.float32 or find_spec("triton") is None:
        return []
    from fedleak.attacks.simulation.fused_steps import FusedSteps

    return [("fused", FusedSteps(layers, weights, tuple(images.shape[1:]), lr))]


def _one_step(steps: Steps, weights: Named, inputs: Tensor, labels: Tensor) -> tuple[Tensor, int, int]:
    """Slopes of two victims over one step, and the memory for one of them."""
    state = steps.load({name: value.expand(2, *value.shape) for name, value in weights.items()})
    ramps = {name: torch.linspace(-1, 1, 2 * value.numel()).to(value) for name, value in weights.items()}
    adjoint = steps.load({name: ramps[name].reshape(2, *value.shape) for name, value in weights.items()})
    before = 0
    if inputs.is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    kept = steps.forward(state, inputs, labels, None)
    slope = steps.backward(state, adjoint, kept, inputs, labels, None)
    held = sum(one.numel() * one.element_size() for one in kept) // 2
    at_work = (torch.cuda.max_memory_allocated() - before) // 2 if inputs.is_cuda else 0
    return torch.cat([slope.reshape(-1), *(one.reshape(-1) for one in steps.named(adjoint).values())]), held, at_work


def first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
