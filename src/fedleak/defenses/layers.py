"""Clipping layer by layer (dlm.txt eq. 12): what bounds the weights, not the update."""

from __future__ import annotations

from torch import Tensor

from fedleak.defenses.payloads import global_norm
from fedleak.types import Named

__all__ = ["clipped_layers", "layer_of"]


def layer_of(name: str) -> str:
    """A layer is a module: `conv1.weight` and `conv1.bias` are one, a parameter outside any module is its own."""
    return name.rpartition(".")[0] or name


def clipped_layers(numbers: Named, bound: float) -> dict[str, Tensor]:
    """Every layer divided by max(1, its norm / bound); a layer within the bound is left bit for bit."""
    layers: dict[str, dict[str, Tensor]] = {}
    for name, value in numbers.items():
        layers.setdefault(layer_of(name), {})[name] = value
    norms = {layer: global_norm(members) for layer, members in layers.items()}
    return {
        name: value if norms[layer_of(name)] <= bound else value * (bound / norms[layer_of(name)])
        for name, value in numbers.items()
    }
