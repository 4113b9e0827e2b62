"""The rivals of `fedleak bench fedavg`, on the same problem: one client at a time, in torch and in JAX.

Both do what an attack on FedAvg does in one step: train on the dummies, compare the update with the client's, and pull
the distance back through all of the training.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedleak.learning.functional import Loss

__all__ = ["Dummies", "eager_client", "jax_client"]


@dataclass(frozen=True, eq=False)
class Dummies:
    """Inputs (V, U, m, C, H, W), labels (V, U, m), weights by name, and per name the target updates (V, ...)."""

    inputs: Tensor
    labels: Tensor
    weights: dict[str, Tensor]
    targets: dict[str, Tensor]


def eager_client(module: nn.Module, loss: Loss, lr: float, given: Dummies, client: int) -> Tensor:
    """The plain way: create_graph through every step, then one backward through all of them."""
    inputs = given.inputs[client].clone().requires_grad_()
    first = {name: value.clone().requires_grad_() for name, value in given.weights.items()}
    now = first
    for step in range(inputs.shape[0]):
        value = loss(functional_call(module, now, (inputs[step],)), given.labels[client, step])
        slopes = torch.autograd.grad(value, list(now.values()), create_graph=True)
        now = {name: old - lr * slope for (name, old), slope in zip(now.items(), slopes, strict=True)}
    apart = [(first[name] - now[name]) / lr - given.targets[name][client] for name in now]
    distance = torch.stack([one.square().sum() for one in apart]).sum()
    return torch.autograd.grad(distance, inputs)[0]


def jax_client(lr: float, given: Dummies, clients: int) -> Callable[[int], Any] | None:
    """The same as a function of the client's number, below `clients`, compiled by JAX in full float32: the distance and
    its slope (U, m, H, W, C). None where JAX is missing.

    The network is the one of `fedleak.models.fedavg_paper`: two blocks of convolution, ReLU and pooling, two dense
    layers.
    """
    # Beside torch on one GPU: JAX would take three quarters of its memory at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        jax: Any = importlib.import_module("jax")
    except ImportError:
        return None
    jnp, lax = jax.numpy, jax.lax

    def pooled(images: Any) -> Any:
        summed = lax.reduce_window(images, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return summed / 4

    def value(weights: Any, images: Any, labels: Any) -> Any:
        for kernel, bias in (weights[0:2], weights[2:4]):
            made = lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            images = pooled(jax.nn.relu(made + bias))
        flat = images.reshape(images.shape[0], -1)
        scores = jax.nn.relu(flat @ weights[4] + weights[5]) @ weights[6] + weights[7]
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1).mean()

    def distance(images: Any, labels: Any, weights: Any, targets: Any) -> Any:
        def step(now: Any, batch: Any) -> Any:
            slopes = jax.grad(value)(now, *batch)
            return [old - lr * slope for old, slope in zip(now, slopes, strict=True)], None

        last, _ = lax.scan(step, weights, (images, labels))
        apart = [(a - b) / lr - t for a, b, t in zip(weights, last, targets, strict=True)]
        return sum((one**2).sum() for one in apart)

    height, width = (size // 4 for size in given.inputs.shape[-2:])

    def moved(tensors: list[Tensor]) -> list[Any]:
        """torch's (out, in, 3, 3) and (out, in) as JAX's (3, 3, in, out) and (in, out); channels are last there."""
        found = [one.permute(2, 3, 1, 0) if one.dim() == 4 else one.t() if one.dim() == 2 else one for one in tensors]
        first = tensors[4]
        found[4] = first.reshape(len(first), -1, height, width).permute(2, 3, 1, 0).reshape(-1, len(first))
        return [jnp.asarray(one.cpu().numpy()) for one in found]

    own = moved(list(given.weights.values()))
    pictures = jnp.asarray(given.inputs[:clients].permute(0, 1, 2, 4, 5, 3).cpu().numpy())
    labels = jnp.asarray(given.labels[:clients].cpu().numpy())
    targets = [moved([one[client] for one in given.targets.values()]) for client in range(clients)]
    with jax.default_matmul_precision("highest"):
        compiled = jax.jit(jax.value_and_grad(distance))
        compiled = compiled.lower(pictures[0], labels[0], own, targets[0]).compile()

    def run(client: int) -> Any:
        found = compiled(pictures[client], labels[client], own, targets[client])
        return jax.block_until_ready(found)

    return run
