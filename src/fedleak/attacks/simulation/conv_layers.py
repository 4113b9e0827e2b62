"""Which networks have their steps written out, and how their weights lie in memory for it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from fedleak.attacks.simulation.tiles import Grid
from fedleak.learning.functional import LOSSES, Loss
from fedleak.types import Named

__all__ = ["Layers", "States", "layers_of"]

Layer = tuple[str, int, int]
"""A layer's name in the module, and how many channels or features go in and come out."""


@dataclass(frozen=True)
class Layers:
    """Blocks of (3x3 convolution, ReLU, 2x2 average pooling), then dense layers with ReLUs between them."""

    convolutions: tuple[Layer, ...]
    dense: tuple[Layer, ...]


def layers_of(module: nn.Module, loss: Loss) -> Layers | None:
    """The layers, where the module is such a network trained with cross-entropy and nothing else; else None."""
    if type(module) is not nn.Sequential or loss is not LOSSES["cross_entropy"] or _hooked(module):
        return None
    named = [(name, layer) for name, layer in module.named_children()]
    convolutions: list[Layer] = []
    while len(named) >= 3:
        (name, layer), (_, middle), (_, pool) = named[:3]
        if not (_is_convolution(layer) and type(middle) is nn.ReLU and _is_pooling(pool)):
            break
        assert isinstance(layer, nn.Conv2d)
        convolutions.append((name, layer.in_channels, layer.out_channels))
        named = named[3:]
    if not convolutions or len(named) < 2 or not _is_flatten(named[0][1]):
        return None
    dense: list[Layer] = []
    for at, (name, layer) in enumerate(named[1:]):
        if at % 2 == 0 and type(layer) is nn.Linear and layer.bias is not None:
            dense.append((name, layer.in_features, layer.out_features))
        elif at % 2 == 0 or type(layer) is not nn.ReLU:
            return None
    return Layers(tuple(convolutions), tuple(dense)) if len(named) % 2 == 0 else None


def _hooked(module: nn.Module) -> bool:
    """Whether a hook may change what a layer computes."""
    return any(one._forward_hooks or one._forward_pre_hooks or one._backward_hooks for one in module.modules())


def _is_convolution(layer: nn.Module) -> bool:
    return (
        type(layer) is nn.Conv2d
        and (layer.kernel_size, layer.stride, layer.dilation, layer.groups) == ((3, 3), (1, 1), (1, 1), 1)
        and layer.padding in ((1, 1), "same")
        and layer.padding_mode == "zeros"
        and layer.bias is not None
    )


def _is_pooling(layer: nn.Module) -> bool:
    if type(layer) is not nn.AvgPool2d or layer.ceil_mode or layer.divisor_override is not None:
        return False
    return all(value in (wanted, (wanted, wanted)) for value, wanted in _sizes(layer))


def _sizes(layer: nn.AvgPool2d) -> list[tuple[object, int]]:
    return [(layer.kernel_size, 2), (layer.stride, 2), (layer.padding, 0)]


def _is_flatten(layer: nn.Module) -> bool:
    return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)


class States:
    """Weights of many networks as one list: the first kernel with its bias as (networks, rows, out), per further
    convolution a kernel (networks, 9, in * out) and a bias (networks, 1, out), per dense layer a matrix
    (networks, in, out) and a bias (networks, 1, out)."""

    def __init__(self, layers: Layers, weights: Named, input_shape: tuple[int, ...]) -> None:
        self.layers, self.order = layers, tuple(weights)
        self.channels, height, width = input_shape
        self.grids: list[Grid] = []
        for _ in layers.convolutions:
            self.grids.append(Grid(height, width))
            height, width = height // 2, width // 2
        self.last = (height, width)
        # Rows of a multiple of four numbers: aligned for every library.
        self.rows = -(-(9 * self.channels + 1) // 4) * 4

    def load(self, named: Named) -> list[Tensor]:
        """A state, as tensors of its own, from tensors (networks, ...) in torch's layout."""
        state: list[Tensor] = []
        for k, (name, into, out) in enumerate(self.layers.convolutions):
            kernel, bias = named[f"{name}.weight"], named[f"{name}.bias"]
            networks = len(kernel)
            rows = kernel.new_empty(networks, 3, 3, into, out).copy_(kernel.permute(0, 3, 4, 2, 1))
            if k == 0:
                first = kernel.new_zeros(networks, self.rows, out)
                first[:, : 9 * into] = rows.view(networks, 9 * into, out)
                first[:, 9 * into] = bias
                state.append(first)
            else:
                state += [rows.view(networks, 9, into * out), bias[:, None].clone()]
        for k, (name, into, out) in enumerate(self.layers.dense):
            matrix, bias = named[f"{name}.weight"], named[f"{name}.bias"]
            networks = len(matrix)
            # torch flattens channels first; here they are last
            places = self.last if k == 0 else (1, 1)
            parts = matrix.reshape(networks, out, -1, *places).permute(0, 3, 4, 2, 1)
            state.append(matrix.new_empty(parts.shape).copy_(parts).view(networks, into, out))
            state.append(bias[:, None].clone())
        return state

    def named(self, state: list[Tensor]) -> dict[str, Tensor]:
        """A state in torch's layout, in the order of the weights; mostly views of it."""
        found: dict[str, Tensor] = {}
        convolutions, dense = self.split(state)
        for (name, into, out), (kernel, bias) in zip(self.layers.convolutions, convolutions, strict=True):
            rows = kernel.reshape(len(kernel), -1, out)[:, : 9 * into]
            found[f"{name}.weight"] = rows.reshape(len(rows), 3, 3, into, out).permute(0, 4, 3, 1, 2)
            found[f"{name}.bias"] = bias[:, 0]
        for k, ((name, into, out), (matrix, bias)) in enumerate(zip(self.layers.dense, dense, strict=True)):
            places = self.last if k == 0 else (1, 1)
            parts = matrix.view(len(matrix), *places, -1, out).permute(0, 4, 3, 1, 2)
            found[f"{name}.weight"], found[f"{name}.bias"] = parts.reshape(len(matrix), out, into), bias[:, 0]
        return {name: found[name] for name in self.order}

    def split(self, state: list[Tensor]) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
        """(kernel, bias) of every convolution, the first bias a row of its kernel; (matrix, bias) of dense layers."""
        cut = 2 * len(self.layers.convolutions) - 1
        first, row = state[0], 9 * self.channels
        convolutions = [(first, first[:, row : row + 1]), *zip(state[1:cut:2], state[2:cut:2], strict=True)]
        return convolutions, list(zip(state[cut::2], state[cut + 1 :: 2], strict=True))
