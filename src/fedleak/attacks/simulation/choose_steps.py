"""How a module's steps are computed: the fastest way that agrees with autograd, one victim at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedleak.attacks.simulation.conv_layers import Layers, layers_of, sizes_of
from fedleak.attacks.simulation.generic_steps import LoneSteps, MappedSteps, Steps
from fedleak.attacks.simulation.tiled_steps import TiledSteps
from fedleak.errors import RefusedError
from fedleak.learning.functional import Loss, Network
from fedleak.seeding import Seeds
from fedleak.types import Named

__all__ = ["Choice", "choose", "first_line"]

SAME = 1e-2
"""How far two computations of the same slope may be apart, as a share: far above rounding, far below a wrong one."""
ROUNDING = 16
"""Units in the last place by which a number that is moved a little may come out different."""
TF32 = (8, 0)
"""The first compute capability whose products our kernels use."""
INDICES = 2**31
"""Our kernels count the numbers that one network reads or makes in 32 bits."""


@dataclass(frozen=True, eq=False)
class Choice:
    """The steps, in words how they are computed, and what a victim takes of a GPU's memory: bytes that each step keeps,
    and bytes while it is computed. `fallback` says why victims are taken one by one where they are, `unfused` why a
    GPU does not run our kernels where they were tried."""

    steps: Steps
    engine: str
    fallback: str = ""
    kept: int = 0
    at_work: int = 0
    unfused: str = ""


@dataclass(frozen=True, eq=False)
class _Moved:
    """Numbers before and after something was added to them: the weights over a step, the adjoint on the way back; of
    the dummies the slope, before which there is nothing."""

    before: Tensor
    after: Tensor


def choose(network: Network, loss: Loss, weights: Named, lr: float, images: Tensor, labels: Tensor) -> Choice:
    """Tries the ways on two victims with a batch like `images` (m, C, H, W) with `labels` (m,)."""
    # Noise: in a smooth picture neighbours are so alike that rounding decides which of them a maximum takes.
    noise = torch.randn(2, *images.shape, generator=Seeds(0).generator("ways")).to(images)
    # Other labels for the second: where a network is sure of a label nothing but rounding is left of the slope.
    batch = noise, torch.stack([labels, torch.where(labels > 0, labels - 1, labels + 1)])
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
    ways: list[tuple[str, Callable[[], Steps]]] = [("mapped", lambda: MappedSteps(network, loss, weights, lr))]
    layers = layers_of(network.module, loss)
    if layers is not None:
        known = layers, weights, tuple(images.shape[1:]), lr
        ways.insert(0, ("written out", lambda: TiledSteps(*known)))
        if _may_fuse(images):
            ways.insert(0, ("fused", lambda: _fused(*known, batch=images)))
    trouble, unfused = "", ""
    for name, make in ways:
        try:
            steps = make()
            found, kept, at_work = _one_step(steps, weights, *batch)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            trouble = first_line(error)
        else:
            if all(_agree(one, other) for one, other in zip(found, expected, strict=True)):
                return Choice(steps, name, "", kept, at_work, unfused)
            # torch maps some layers to other second derivatives than theirs (BatchNorm on batch statistics).
            trouble = f"its {name} derivatives are wrong"
        if name == "fused":
            unfused = f"no kernels of our own: {trouble}"
    fallback = f"victims one by one: the module cannot be mapped over them ({trouble})"
    return Choice(lone, "one by one", fallback, memory[0], memory[1], unfused)


def _may_fuse(images: Tensor) -> bool:
    """Whether our kernels are for such pictures."""
    return images.is_cuda and images.dtype == torch.float32


def _fused(layers: Layers, weights: Named, input_shape: tuple[int, ...], lr: float, *, batch: Tensor) -> Steps:
    """Steps in kernels of our own. Fails in one way or another where a GPU, or what is installed, cannot run them."""
    if batch.is_cuda and torch.cuda.get_device_capability(batch.device) < TF32:
        # Asked before Triton is: its compiler may end the whole process on what a GPU does not have.
        name = torch.cuda.get_device_name(batch.device)
        raise RefusedError(f"they need a GPU of compute capability {TF32[0]}.{TF32[1]} or more, and {name} has less")
    blocks = zip(layers.convolutions, sizes_of(layers, input_shape), strict=False)  # the last size is the dense layers'
    pictures = len(batch) * max(max(into, out) * high * wide for (_, into, out), (high, wide) in blocks)
    if (most := max(pictures, *(value.numel() for value in weights.values()))) >= INDICES:
        raise RefusedError(f"they count in 32 bits, and one layer of one network has {most} numbers")
    # Triton comes with torch on Linux alone, and an old one lacks what the kernels say.
    from fedleak.attacks.simulation.fused_steps import FusedSteps

    return FusedSteps(layers, weights, input_shape, lr)


def _one_step(steps: Steps, weights: Named, inputs: Tensor, labels: Tensor) -> tuple[list[_Moved], int, int]:
    """What one step and its way back come to for two victims, and the memory for one of them."""
    given = {name: value.expand(2, *value.shape) for name, value in weights.items()}
    ramps = {name: torch.linspace(-1, 1, value.numel()).to(value).view_as(value) for name, value in given.items()}
    state = steps.load(given)
    steps.forward(state, inputs, labels, None)
    moved = _Moved(_flat(given), _flat(steps.named(state)))
    state, adjoint = steps.load(given), steps.load(ramps)
    before = 0
    if inputs.is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    kept = steps.forward(state, inputs, labels, None)
    slope = steps.backward(state, adjoint, kept, inputs, labels, None)
    held = sum(one.numel() * one.element_size() for one in kept) // 2
    at_work = (torch.cuda.max_memory_allocated() - before) // 2 if inputs.is_cuda else 0
    found = [moved, _Moved(_flat(ramps), _flat(steps.named(adjoint))), _Moved(torch.zeros_like(slope), slope)]
    return found, held, at_work


def _agree(found: _Moved, expected: _Moved) -> bool:
    """Whether the same was added. What is added to weights is small beside them, and lost to rounding in part."""
    norm, moved = torch.linalg.vector_norm, expected.after - expected.before
    if not bool(moved.isfinite().all()):
        return True  # weights that are not finite say nothing about the way
    lost = ROUNDING * torch.finfo(moved.dtype).eps * norm(expected.before)
    return bool(norm(found.after - expected.after) <= SAME * norm(moved) + lost)


def _flat(named: Named) -> Tensor:
    return torch.cat([one.reshape(-1) for one in named.values()])


def first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
