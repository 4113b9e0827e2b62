"""Local training as a pure function: the client runs it, and an attack may unroll it.

Gradients come from torch.func, so that the whole run can be put under `torch.func.vmap` (many clients, many victims)
and, with `differentiable=True`, differentiated again with respect to its inputs, targets and first parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedleak.errors import RefusedError
from fedleak.learning.functional import Loss, Network
from fedleak.types import Named

__all__ = ["GradientHook", "Local", "batch_gradient", "local_sgd", "momentum_gain", "momentum_step", "train"]

GradientHook = Callable[[dict[str, Tensor], int], Named]
"""(per-example gradients with a leading axis of examples, step from 0) to per-example gradients. Their mean is used."""


@dataclass(frozen=True, eq=False)
class Local:
    """What local work leaves: `parameters` (or gradients, named alike) and the module's buffers afterwards."""

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor] = field(default_factory=dict)


def batch_gradient(
    network: Network,
    loss: Loss,
    parameters: Named,
    inputs: Tensor,
    targets: Tensor,
    *,
    buffers: Named | None = None,
    hook: GradientHook | None = None,
    step: int = 0,
) -> Local:
    """The gradient of the mean loss over one batch, and the buffers (BatchNorm statistics) after it."""
    first = {} if buffers is None else dict(buffers)

    def value(
        at: dict[str, Tensor], before: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        # A module changes its buffers in place: hand it copies, so that this stays a function.
        after = {name: tensor.clone() for name, tensor in before.items()}
        return loss(network({**at, **after}, x), y), after

    slope = grad(value, has_aux=True)
    if hook is None:
        gradients, after = slope(dict(parameters), first, inputs, targets)
        return Local(gradients, after)
    each = vmap(slope, in_dims=(None, None, 0, 0), randomness="different")
    try:
        gradients, after = each(dict(parameters), first, inputs.unsqueeze(1), targets.unsqueeze(1))
    except RuntimeError as error:
        raise RefusedError(
            f"per-example gradients: {type(network.module).__name__} cannot be run one example at a time ({error}); "
            "use layers that treat examples apart (GroupNorm instead of BatchNorm), or a defense at another stage"
        ) from error
    changed = hook(gradients, step)
    return Local({name: changed[name].mean(dim=0) for name in gradients}, first)


def momentum_step(
    parameters: Named, gradients: Named, velocity: Named, lr: float, momentum: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """One step of torch.optim.SGD without dampening: v <- momentum v + g (first: g), w <- w - lr v."""
    if momentum and velocity:
        velocity = {name: velocity[name].mul(momentum).add(g) for name, g in gradients.items()}
    else:
        velocity = gradients
    return {name: w.add(velocity[name], alpha=-lr) for name, w in parameters.items()}, dict(velocity)


def momentum_gain(momentum: float, steps: int) -> float:
    """How many times its step length a gradient moves the weights by the end of `steps` steps, on average over them:
    that of the last step once, that of the first 1 + b + ... + b^(steps - 1) times.

    >>> momentum_gain(0.0, 10), momentum_gain(0.5, 2)
    (1.0, 1.25)
    """
    if momentum == 0:
        return 1.0
    left = torch.arange(1, steps + 1, dtype=torch.float64)
    return float((-torch.expm1(left * math.log(momentum)) / (1 - momentum)).mean())


def train(
    network: Network,
    loss: Loss,
    parameters: Named,
    inputs: Tensor,
    targets: Tensor,
    batches: Iterable[Tensor],
    *,
    lr: float,
    momentum: float = 0.0,
    buffers: Named | None = None,
    differentiable: bool = False,
    hook: GradientHook | None = None,
    on_step: Callable[[int, Mapping[str, Tensor]], None] | None = None,
) -> Local:
    """SGD over `batches` of indices into inputs and targets. Nothing given is changed in place.

    `hook` sees and may change the per-example gradients of each step; `on_step(step, parameters)` sees the parameters
    after it. Momentum starts at zero.
    """
    local = Local(dict(parameters), {} if buffers is None else dict(buffers))
    velocity: dict[str, Tensor] = {}
    with nullcontext() if differentiable else torch.no_grad():
        for step, batch in enumerate(batches):
            slope = batch_gradient(
                network,
                loss,
                local.parameters,
                inputs[batch],
                targets[batch],
                buffers=local.buffers,
                hook=hook,
                step=step,
            )
            moved, velocity = momentum_step(local.parameters, slope.parameters, velocity, lr, momentum)
            local = Local(moved, slope.buffers)
            if on_step is not None:
                on_step(step, local.parameters)
    return local


def local_sgd(
    network: Network,
    loss: Loss,
    parameters: Named,
    inputs: Tensor,
    targets: Tensor,
    batches: Iterable[Tensor],
    lr: float,
    momentum: float = 0.0,
    *,
    differentiable: bool = False,
    hook: GradientHook | None = None,
) -> dict[str, Tensor]:
    """The parameters after SGD over `batches`: `train` for a module without buffers.

    With `differentiable=True` the result carries gradients back to `parameters`, `inputs` and `targets`
    (soft ones), and the call can stand under `torch.func.vmap` and `torch.func.grad`.
    """
    return train(
        network,
        loss,
        parameters,
        inputs,
        targets,
        batches,
        lr=lr,
        momentum=momentum,
        differentiable=differentiable,
        hook=hook,
    ).parameters
