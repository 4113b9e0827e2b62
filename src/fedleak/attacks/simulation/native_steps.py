"""Steps of SGD, and the way back, written out with the convolutions that a CPU's library has: for one client oneDNN's
are faster there than products of tiles (tiled_steps.py). They want the channels of a pixel side by side.

Every layer's derivatives are known, so nothing is recorded by autograd. On the way back the gradient's derivative along
the adjoint is computed forward over backward: a name with `d_` in front is the derivative of what it names. ReLU's
second derivative is zero, and the inputs do not move. By the product rule every derivative is a sum of two
convolutions; each such pair is one call, with the channels or the images of both beside each other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from fedleak.attacks.simulation.conv_layers import Layers, sizes_of
from fedleak.attacks.simulation.dense_steps import DenseSteps
from fedleak.attacks.simulation.kept import Kept
from fedleak.types import Named

__all__ = ["NativeSteps"]


class NativeSteps:
    """One step forward and one step back; networks are convolved one by one.

    A state is, per convolution, a kernel (networks, out, 3, 3, in) and a bias (networks, out), then that of the dense
    layers.
    """

    def __init__(self, layers: Layers, weights: Named, input_shape: tuple[int, ...], lr: float) -> None:
        self.convolutions, self.order, self.lr = layers.convolutions, tuple(weights), lr
        self.blocks = len(layers.convolutions)
        self.dense = DenseSteps(layers.dense, sizes_of(layers, input_shape)[-1], lr)

    def load(self, named: Named) -> list[Tensor]:
        state: list[Tensor] = []
        for name, _, _ in self.convolutions:
            kernel = named[f"{name}.weight"].permute(0, 1, 3, 4, 2)
            state += [kernel.new_empty(kernel.shape).copy_(kernel), named[f"{name}.bias"].clone()]
        return [*state, *self.dense.load(named)]

    def named(self, state: list[Tensor]) -> dict[str, Tensor]:
        convolutions, dense = self._split(state)
        found = self.dense.named(dense)
        for (name, _, _), (kernel, bias) in zip(self.convolutions, convolutions, strict=True):
            found[f"{name}.weight"], found[f"{name}.bias"] = kernel.permute(0, 1, 4, 2, 3), bias
        return {name: found[name] for name in self.order}

    def forward(self, state: list[Tensor], inputs: Tensor, labels: Tensor, share: Tensor | None) -> list[Tensor]:
        convolutions, dense = self._split(state)
        kernels = [kernel.clone() for kernel, _ in convolutions]
        made: list[Tensor] = []
        pools = [_channels_last(inputs)]
        for kernel, bias in convolutions:
            made.append(_each(_convolved, pools[-1], kernel, bias).clamp_min_(0))
            pools.append(_pooled(made[-1]))
        slope, kept = self.dense.forward(dense, pools[-1].flatten(2), labels, share)
        pulled = [slope.view(pools[-1].shape)]
        for k in reversed(range(self.blocks)):
            kernel, bias = convolutions[k]
            back = _opened(made[k], pulled[0])
            if k:
                pulled.insert(0, _each(_input_slope, back, kernel))
            self._move(kernel, bias, _each(_kernel_slope, pools[k], back), back)
        return Kept(kernels, made, pools[1:-1], pulled, kept).flat()

    def backward(
        self,
        state: list[Tensor],
        adjoint: list[Tensor],
        kept: list[Tensor],
        inputs: Tensor,
        labels: Tensor,
        share: Tensor | None,
    ) -> Tensor:
        _, dense = self._split(state)
        d_convolutions, d_dense = self._split(adjoint)
        was = Kept.of(kept, self.blocks)
        pools = [_channels_last(inputs), *was.pools]
        d_pools: list[Tensor] = []
        for k, (d_kernel, d_bias) in enumerate(d_convolutions):
            if k == 0:
                d_made = _each(_convolved, pools[0], d_kernel, d_bias)
            else:
                # d(pool * kernel) = d_pool * kernel + pool * d_kernel: the channels beside each other.
                wide, kernel = _beside(d_pools[-1], pools[k]), _beside(was.kernels[k], d_kernel)
                d_made = _each(_convolved, wide, kernel, d_bias)
            d_pools.append(_pooled(_where_open(d_made, was.open[k])))
        d_slope = self.dense.backward(dense, d_dense, was.dense, d_pools[-1].flatten(2), share)
        d_pulled = d_slope.view(d_pools[-1].shape)
        for k in reversed(range(self.blocks)):
            d_kernel, d_bias = d_convolutions[k]
            out = d_bias.shape[-1]
            both = _opened(was.open[k], d_pulled, was.pulled[k])
            d_back, back = both[..., :out], both[..., out:]
            d_pulled = _each(_input_slope, both, torch.cat([was.kernels[k], d_kernel], dim=1))
            if k == 0:
                along = _each(_kernel_slope, pools[0], d_back.contiguous())
            else:
                left, right = (d_pools[k - 1], pools[k]), (back, d_back)
                along = _each(_kernel_slope, torch.cat(left, dim=1), torch.cat(right, dim=1))
            self._move(d_kernel, d_bias, along, d_back)
        return d_pulled.permute(0, 1, 4, 2, 3)

    def _move(self, kernel: Tensor, bias: Tensor, slope: Tensor, back: Tensor) -> None:
        kernel.sub_(slope, alpha=self.lr)
        bias.sub_(back.sum(dim=(1, 2, 3)), alpha=self.lr)

    def _split(self, state: list[Tensor]) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
        """(kernel, bias) of every convolution, and the state of the dense layers."""
        cut = 2 * self.blocks
        return list(zip(state[:cut:2], state[1:cut:2], strict=True)), state[cut:]


def _each(work: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """`work` for every network, each with its own part of the tensors."""
    made = [work(*own) for own in zip(*tensors, strict=True)]
    return made[0][None] if len(made) == 1 else torch.stack(made)


def _convolved(images: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    return _pixels(torch.conv2d(_picture(images), _picture(kernel), bias, padding=1))


def _input_slope(back: Tensor, kernel: Tensor) -> Tensor:
    images = back.new_empty(()).expand(*back.shape[:3], kernel.shape[-1])  # only its shape is looked at
    return _pixels(_slopes(back, images, kernel, (True, False))[0])


def _kernel_slope(images: Tensor, back: Tensor) -> Tensor:
    kernel = back.new_empty(()).expand(back.shape[-1], 3, 3, images.shape[-1])
    return _pixels(_slopes(back, images, kernel, (False, True))[1])


def _slopes(back: Tensor, images: Tensor, kernel: Tensor, wanted: tuple[bool, bool]) -> tuple[Tensor, Tensor, Tensor]:
    one, none = (1, 1), (0, 0)
    given = (_picture(back), _picture(images), _picture(kernel))
    return torch.ops.aten.convolution_backward(*given, None, one, one, one, False, none, 1, (*wanted, False))  # type: ignore[no-any-return]


def _picture(pixels: Tensor) -> Tensor:
    """torch's order of dimensions: (images, channels, height, width), or (out, in, 3, 3)."""
    return pixels.permute(0, 3, 1, 2)


def _pixels(pictures: Tensor) -> Tensor:
    return pictures.permute(0, 2, 3, 1).contiguous()


def _channels_last(inputs: Tensor) -> Tensor:
    # Written out: torch takes a picture of one channel for channels last already, and then does not use it.
    pixels = inputs.permute(0, 1, 3, 4, 2)
    return pixels.new_empty(pixels.shape).copy_(pixels)


def _beside(*parts: Tensor) -> Tensor:
    return torch.cat(parts, dim=-1)


def _pooled(made: Tensor) -> Tensor:
    pooled = _pixels(F.avg_pool2d(_picture(made.flatten(0, 1)), 2))
    return pooled.view(*made.shape[:2], *pooled.shape[1:])


def _where_open(slopes: Tensor, made: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward(slopes, made, 0)  # type: ignore[no-any-return]


def _opened(made: Tensor, *pulled: Tensor) -> Tensor:
    """Slopes by a block's output to slopes by its convolution's, beside each other in the channels."""
    *rest, height, width, channels = made.shape
    high, wide = height // 2, width // 2
    spread = torch.stack(pulled, dim=-2).mul_(0.25)
    windows = made[:, :, : 2 * high, : 2 * wide].reshape(*rest, high, 2, wide, 2, 1, channels)
    opened = _where_open(spread[:, :, :, None, :, None], windows).reshape(*rest, 2 * high, 2 * wide, -1)
    # An odd last row or column is not pooled: nothing comes back to it.
    return opened if (height, width) == (2 * high, 2 * wide) else F.pad(opened, (0, 0, 0, width % 2, 0, height % 2))
