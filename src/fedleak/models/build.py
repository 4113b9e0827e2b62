"""From a model's name to a module with initial values drawn from the caller's generator."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from fedleak.components import configure
from fedleak.errors import RefusedError
from fedleak.factories import frozen_as_buffers, made_by
from fedleak.models.registry import MODELS
from fedleak.types import ModelSpec

__all__ = ["build_model"]


def build_model(
    spec: ModelSpec, input_shape: tuple[int, ...], classes: int, rng: torch.Generator | None = None
) -> nn.Module:
    """The module a spec names. With `rng` its initial values are drawn from it; nothing seeds globally.

    Without `rng` the values are unspecified: an attack replaces them by the broadcast weights.
    """
    seed = int(torch.randint(0, 2**62, (1,), generator=rng)) if rng is not None else 0
    with torch.random.fork_rng(devices=[]):
        # Modules draw from torch's global generator when they are made: lend them a seeded one and give it back.
        torch.manual_seed(seed)
        if spec.factory is not None:
            return frozen_as_buffers(made_by(spec.factory))
        if spec.name not in MODELS:
            raise RefusedError(
                f"model={spec.name!r}: not one of {', '.join(sorted(MODELS))}; "
                "pass the module itself (Python: transcript.with_model(factory); command line: --model module:factory)"
            )
        model: Any = configure(MODELS[spec.name], spec.arguments)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")  # refused below, with the reason
            module: nn.Module = model(input_shape, classes)
        if any(not value.numel() for value in module.parameters()):
            raise RefusedError(
                f"model={spec.name!r}: pictures of {'x'.join(map(str, input_shape[1:]))} are too small for it, its "
                "poolings leave nothing of them; take larger pictures (data.size) or a network with fewer layers"
            )
        return module
