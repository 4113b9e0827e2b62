"""How the tensors of a stack lie in memory: weights as rows of one tensor, pictures as a CPU likes them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedleak.errors import ShapeError

__all__ = ["apart", "as_given", "as_rows", "channels_first_is_slow", "channels_last", "copied"]


def as_rows(named: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """One stacked tensor for each name; the modules' own tensors become rows of it."""
    shapes = [{name: (value.shape, value.dtype) for name, value in own.items()} for own in named]
    if any(other != shapes[0] for other in shapes):
        raise ShapeError("modules: the networks of a stack must have the same architecture; make a stack for each")
    stacked = {name: torch.stack([own[name].detach() for own in named]) for name in named[0]}
    for k, own in enumerate(named):
        for name, value in own.items():
            value.data = stacked[name][k]
    return stacked


def apart(module: nn.Module) -> nn.Module:
    """A copy of one network of a stack. A deep copy of a buffer, frozen layers among them, would bring along the whole
    tensor that it is a row of."""
    return copy.deepcopy(module, {id(value): value.detach().clone() for value in module.buffers()})


def channels_first_is_slow(module: nn.Module) -> bool:
    """On a CPU torch pools faster where the channels of a pixel lie side by side: a training step of the papers' CNNs
    takes half (pli_cnn) to four fifths (adamsa_cnn) of the time. Only for torch's own layers in a row: a user's module
    may rely on the usual layout.
    """
    layers = list(module.modules())
    own = all(type(layer).__module__.startswith("torch.nn.") for layer in layers)
    return own and isinstance(module, nn.Sequential) and any(isinstance(layer, nn.MaxPool2d) for layer in layers)


def channels_last(inputs: Tensor) -> Tensor:
    """Pictures (n, C, H, W) with the channels of a pixel side by side; anything else as it is."""
    if inputs.ndim != 4:
        return inputs
    # Written out: torch takes a picture of one channel for channels last already, and then does not use it.
    return torch.empty_like(inputs, memory_format=torch.channels_last).copy_(inputs)


def as_given(inputs: Tensor) -> Tensor:
    return inputs


def copied(value: Any) -> Any:
    """The same nested lists and mappings with copies of their tensors, on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, Mapping):
        return {key: copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [copied(inner) for inner in value]
    return value
