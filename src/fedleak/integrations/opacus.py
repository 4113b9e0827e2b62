"""Opacus: a client's local training with DP-SGD, and what it has spent.

    run = train_private(net, images, labels, epochs=1, batch_size=8, lr=0.1, noise_multiplier=1.0, max_grad_norm=1.0)
    send(run.weights)
    ledger += run.history
    epsilon_spent(ledger, delta=1e-5)

Importing this module does not import opacus.
"""

from __future__ import annotations

import copy
import importlib
import math
import secrets
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedleak.errors import RefusedError
from fedleak.learning.functional import loss_named

__all__ = ["PrivateRun", "Spending", "epsilon_spent", "noise_for", "train_private"]

TIGHT_UP_TO = 50.0
"""Above this epsilon the grid of the PRV accountant takes gigabytes; the RDP accountant's bound, a little larger, is
used instead. No such epsilon protects anybody anyway."""

Spending = tuple[float, float, int]
"""(noise multiplier, sampling rate, steps): what Opacus' accountants compose."""


@dataclass(frozen=True, eq=False)
class PrivateRun:
    """What private training leaves: the weights to send, and what was spent on them."""

    weights: dict[str, Tensor]
    history: tuple[Spending, ...]


def train_private(
    module: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    noise_multiplier: float,
    max_grad_norm: float,
    momentum: float = 0.0,
    loss: str = "cross_entropy",
    seed: int | None = None,
) -> PrivateRun:
    """SGD with Opacus' PrivacyEngine: Poisson-sampled batches, clipped gradients, noise. `module` is not changed.

    `seed` repeats sampling and noise, for audits; None draws from the system's secret randomness, for deployments.

    Sees: the client's own examples. Needs: a module without BatchNorm and the like.
    Guarantees: example-level (epsilon, delta), one example added or removed: `epsilon_spent(run.history)`.
    """
    engine_module, validators = _opacus("opacus"), _opacus("opacus.validators")
    problems = validators.ModuleValidator.validate(module, strict=False)
    if problems:
        raise RefusedError(
            f"model={type(module).__name__}: {problems[0]}; a gradient per example has no meaning there. Replace the "
            "layer (GroupNorm instead of BatchNorm; opacus.validators.ModuleValidator.fix does it)"
        )
    if not 1 <= batch_size <= len(inputs):
        raise RefusedError(f"batch_size={batch_size}: must lie in 1 .. {len(inputs)}, the number of examples")
    rng = torch.Generator().manual_seed(secrets.randbits(63) if seed is None else seed)
    private = copy.deepcopy(module).train()
    criterion = loss_named(loss)
    with warnings.catch_warnings():
        # It asks for secure_mode, which needs a compiled extra, and warns about hooks on the first layer's inputs.
        warnings.simplefilter("ignore")
        engine = engine_module.PrivacyEngine(accountant="prv")
        wrapped, optimiser, loader = engine.make_private(
            module=private,
            optimizer=torch.optim.SGD(private.parameters(), lr=lr, momentum=momentum),
            data_loader=DataLoader(TensorDataset(inputs, targets), batch_size=batch_size, generator=rng),
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            noise_generator=rng,
        )
        steps = 0
        for _ in range(epochs):
            for some, wanted in loader:
                optimiser.zero_grad()
                outputs = wrapped(some)
                # Poisson sampling may draw nobody; the step is then noise alone, and must still be taken.
                torch.autograd.backward(criterion(outputs, wanted) if len(some) else outputs.sum())
                optimiser.step()
                steps += 1
    weights = {name: value.detach().clone() for name, value in private.state_dict().items()}
    rate = 1.0 / len(loader)
    return PrivateRun(weights, ((noise_multiplier, rate, steps),))


def epsilon_spent(history: Sequence[Spending], delta: float = 1e-5) -> float:
    """The epsilon of everything in the ledger, over all rounds, by Opacus' PRV accountant (RDP above TIGHT_UP_TO)."""
    if not history or any(noise == 0 for noise, _, _ in history):
        return 0.0 if not history else math.inf
    merged: dict[tuple[float, float], int] = {}
    for noise, rate, steps in history:
        merged[(noise, rate)] = merged.get((noise, rate), 0) + steps
    ledger = [(noise, rate, steps) for (noise, rate), steps in merged.items()]
    bound = _accounted(ledger, delta, "rdp")
    return bound if bound > TIGHT_UP_TO else _accounted(ledger, delta, "prv")


def _accounted(ledger: list[Spending], delta: float, mechanism: str) -> float:
    accountant = _opacus("opacus.accountants").create_accountant(mechanism=mechanism)
    accountant.history = ledger
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a wider range of orders would bound an enormous epsilon better
        return float(accountant.get_epsilon(delta))


def noise_for(epsilon: float, *, sample_rate: float, steps: int, delta: float = 1e-5) -> float:
    """The noise multiplier with which so many steps in all cost at most this epsilon."""
    if not epsilon > 0:
        raise RefusedError(f"epsilon={epsilon}: must be more than 0")
    find: Callable[..., float] = _opacus("opacus.accountants.utils").get_noise_multiplier
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = find(
            target_epsilon=epsilon,
            target_delta=delta,
            sample_rate=sample_rate,
            steps=steps,
            accountant="rdp" if epsilon > TIGHT_UP_TO else "prv",
        )
    return float(found)


def _opacus(name: str) -> ModuleType | Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name and missing.name.split(".")[0] == "opacus":
            raise RefusedError(
                "opacus is not installed and fedleak.integrations.opacus needs it: pip install 'fedleak[opacus]'"
            ) from None
        raise
