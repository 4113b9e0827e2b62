"""Steps of SGD, and the way back, written out in kernels of our own: what is fastest on a GPU.

A GPU has far more arithmetic than memory traffic to offer, so a kernel does at once what would otherwise go through
memory several times: convolution, ReLU and pooling; a dense layer's step and the slope by its inputs.

Every layer's derivatives are known, so nothing is recorded by autograd. On the way back the gradient's derivative along
the adjoint is computed forward over backward: a name with `d_` in front is the derivative of what it names. ReLU's
second derivative is zero, and the inputs do not move.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedleak.attacks.simulation.conv_layers import Layers, sizes_of
from fedleak.attacks.simulation.dense_steps import DenseSteps
from fedleak.attacks.simulation.fused_calls import FusedProducts, back, opened, pooled, slope_by_kernel
from fedleak.attacks.simulation.kept import Kept
from fedleak.types import Named

__all__ = ["FusedSteps"]


class FusedSteps:
    """One step forward and one step back for many networks, each with weights of its own, in float32.

    A state is, per convolution, a kernel (networks, 9 * in, out) and a bias (networks, out), then that of the dense
    layers.
    """

    def __init__(self, layers: Layers, weights: Named, input_shape: tuple[int, ...], lr: float) -> None:
        self.convolutions, self.order, self.lr = layers.convolutions, tuple(weights), lr
        self.blocks = len(layers.convolutions)
        self.sizes = sizes_of(layers, input_shape)
        self.dense = DenseSteps(layers.dense, self.sizes[-1], lr, FusedProducts())

    def load(self, named: Named) -> list[Tensor]:
        state: list[Tensor] = []
        for name, into, out in self.convolutions:
            kernel = named[f"{name}.weight"].permute(0, 3, 4, 2, 1)
            state.append(kernel.new_empty(kernel.shape).copy_(kernel).view(-1, 9 * into, out))
            state.append(named[f"{name}.bias"].clone(memory_format=torch.contiguous_format))
        return [*state, *self.dense.load(named)]

    def named(self, state: list[Tensor]) -> dict[str, Tensor]:
        convolutions, dense = self._split(state)
        found = self.dense.named(dense)
        for (name, into, out), (kernel, bias) in zip(self.convolutions, convolutions, strict=True):
            found[f"{name}.weight"] = kernel.view(-1, 3, 3, into, out).permute(0, 4, 3, 1, 2)
            found[f"{name}.bias"] = bias
        return {name: found[name] for name in self.order}

    def forward(self, state: list[Tensor], inputs: Tensor, labels: Tensor, share: Tensor | None) -> list[Tensor]:
        convolutions, dense = self._split(state)
        kernels = [kernel.clone() for kernel, _ in convolutions]
        pools, open_ = [_channels_last(inputs)], []
        for kernel, bias in convolutions:
            made, lets = pooled([(pools[-1], kernel)], bias)
            pools.append(made)
            open_.append(lets)
        slope, kept = self.dense.forward(dense, pools[-1].flatten(2), labels, share)
        pulled = [slope.view(pools[-1].shape)]
        for k in reversed(range(self.blocks)):
            kernel, bias = convolutions[k]
            (through,) = opened(open_[k], pulled[0])
            if k:
                pulled.insert(0, back([(through, kernel)], self.sizes[k]))
            self._move(kernel, bias, [(pools[k], through)])
        return Kept(kernels, open_, pools[1:-1], pulled, kept).flat()

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
            pairs = [(pools[k], d_kernel)]
            if k:
                pairs.append((d_pools[-1], was.kernels[k]))
            d_pools.append(pooled(pairs, d_bias, was.open[k])[0])
        d_slope = self.dense.backward(dense, d_dense, was.dense, d_pools[-1].flatten(2), share)
        d_pulled = d_slope.view(d_pools[-1].shape)
        for k in reversed(range(self.blocks)):
            d_kernel, d_bias = d_convolutions[k]
            d_through, through = opened(was.open[k], d_pulled, was.pulled[k])
            d_pulled = back([(d_through, was.kernels[k]), (through, d_kernel)], self.sizes[k])
            pairs = [(pools[k], d_through)]
            if k:
                pairs.append((d_pools[k - 1], through))
            self._move(d_kernel, d_bias, pairs)
        return d_pulled.permute(0, 1, 4, 2, 3)

    def _move(self, kernel: Tensor, bias: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> None:
        by_kernel, by_bias = slope_by_kernel(pairs)
        kernel.sub_(by_kernel, alpha=self.lr)
        bias.sub_(by_bias, alpha=self.lr)

    def _split(self, state: list[Tensor]) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
        """(kernel, bias) of every convolution, and the state of the dense layers."""
        cut = 2 * self.blocks
        return list(zip(state[:cut:2], state[1:cut:2], strict=True)), state[cut:]


def _channels_last(inputs: Tensor) -> Tensor:
    pixels = inputs.permute(0, 1, 3, 4, 2)
    return pixels.new_empty(pixels.shape).copy_(pixels)
