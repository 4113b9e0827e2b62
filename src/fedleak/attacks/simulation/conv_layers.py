"""Which networks have their steps written out."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fedleak.learning.functional import LOSSES, Loss

__all__ = ["Layer", "Layers", "layers_of", "sizes_of"]

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


def sizes_of(layers: Layers, input_shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Height and width of the pictures, of what every block makes of them, and so of what the dense layers read."""
    _, height, width = input_shape
    return [(height >> k, width >> k) for k in range(len(layers.convolutions) + 1)]
