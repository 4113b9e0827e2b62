"""Steps of SGD, and the way back, written out as products of tiles (tiles.py): for a CPU, and for a GPU without Triton.

Every layer's derivatives are known, so nothing is recorded by autograd. A step keeps what the way back needs.

On the way back the gradient's derivative along the adjoint is computed forward over backward: a name with `d_` in front
is the derivative of what it names. ReLU's second derivative is zero, and the inputs do not move.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedleak.attacks.simulation.conv_layers import Layers, sizes_of
from fedleak.attacks.simulation.dense_steps import DenseSteps
from fedleak.attacks.simulation.kept import Kept
from fedleak.attacks.simulation.tiles import BIAS, Grid, Maps
from fedleak.types import Named

__all__ = ["TiledSteps"]


class TiledSteps:
    """One step forward and one step back for many networks, each with weights of its own.

    A state is the first kernel with its bias as (networks, rows, out), per further convolution a kernel
    (networks, 9, in * out) and a bias (networks, 1, out), then that of the dense layers.
    """

    def __init__(self, layers: Layers, weights: Named, input_shape: tuple[int, ...], lr: float) -> None:
        self.layers, self.order, self.lr = layers, tuple(weights), lr
        self.channels = input_shape[0]
        *grids, self.last = sizes_of(layers, input_shape)
        self.grids = [Grid(*size) for size in grids]
        # Rows of a multiple of four numbers: aligned for every library.
        self.rows = -(-(9 * self.channels + 1) // 4) * 4
        self.dense = DenseSteps(layers.dense, self.last, lr)
        self.maps = Maps(next(iter(weights.values())))
        self.blocks = len(layers.convolutions)

    def load(self, named: Named) -> list[Tensor]:
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
        return [*state, *self.dense.load(named)]

    def named(self, state: list[Tensor]) -> dict[str, Tensor]:
        convolutions, dense = self._split(state)
        found = self.dense.named(dense)
        for (name, into, out), (kernel, bias) in zip(self.layers.convolutions, convolutions, strict=True):
            rows = kernel.reshape(len(kernel), -1, out)[:, : 9 * into]
            found[f"{name}.weight"] = rows.reshape(len(rows), 3, 3, into, out).permute(0, 4, 3, 1, 2)
            found[f"{name}.bias"] = bias[:, 0]
        return {name: found[name] for name in self.order}

    def forward(self, state: list[Tensor], inputs: Tensor, labels: Tensor, share: Tensor | None) -> list[Tensor]:
        maps = self.maps
        networks, images = labels.shape
        convolutions, dense = self._split(state)
        kernels = [kernel.clone() for kernel, _ in convolutions]
        columns = self._columns(inputs)
        masks: list[Tensor] = []
        pools: list[Tensor] = []
        products: list[tuple[Tensor, Tensor]] = []
        for k, (_, into, out) in enumerate(self.layers.convolutions):
            grid, (kernel, bias) = self.grids[k], convolutions[k]
            if k == 0:
                made = torch.bmm(columns, kernel)
            else:
                tiles = torch.matmul(maps.inputs, grid.tiles(grid.padded(pools[-1])))
                spread = torch.matmul(maps.kernel, kernel)
                products.append((tiles.view(networks * 16, -1, into), spread.view(networks * 16, into, out)))
                made = self._outputs(torch.bmm(*products[-1]), bias)
            made = made.view(networks, 4, -1).clamp_min_(0)
            # A GPU reads a byte faster than a float; a CPU multiplies floats by floats much faster than by bytes.
            masks.append(made > 0 if made.is_cuda else made.sign())
            pools.append(made.mean(dim=1).view(networks, images, grid.high, grid.wide, out))
        slope, kept = self.dense.forward(dense, pools.pop().view(networks, images, -1), labels, share)
        pulled = [slope.view(networks, images, *self.last, -1)]
        for k in reversed(range(1, self.blocks)):
            kernel, bias = convolutions[k]
            back = self._back(masks[k], pulled[0])
            tiles, spread = products[k - 1]
            turned = torch.matmul(maps.inputs_back, torch.bmm(back, spread.mT).view(networks, 16, -1))
            pulled.insert(0, self.grids[k].untiled(turned, images).contiguous())
            self._turn(kernel, bias, torch.bmm(tiles.mT, back), back)
        opened = self._opened(masks[0], pulled[0]).view(networks, -1, state[0].shape[-1])
        state[0].baddbmm_(columns.mT, opened, alpha=-self.lr)
        return Kept(kernels, masks, pools, pulled, kept).flat()

    def backward(
        self,
        state: list[Tensor],
        adjoint: list[Tensor],
        kept: list[Tensor],
        inputs: Tensor,
        labels: Tensor,
        share: Tensor | None,
    ) -> Tensor:
        maps = self.maps
        networks, images = labels.shape
        _, dense = self._split(state)
        d_convolutions, d_dense = self._split(adjoint)
        was = Kept.of(kept, self.blocks)
        columns = self._columns(inputs)
        products: list[tuple[Tensor, Tensor]] = []
        d_pool = inputs
        for k, (_, into, out) in enumerate(self.layers.convolutions):
            grid, (d_kernel, d_bias) = self.grids[k], d_convolutions[k]
            if k == 0:
                d_made = torch.bmm(columns, d_kernel)
            else:
                # d(tiles kernel) = d_tiles kernel + tiles d_kernel: one product, the channels beside each other.
                tiles = torch.matmul(maps.inputs, grid.tiles(grid.padded(d_pool, was.pools[k - 1])))
                pair = [one.view(networks, 9, into, out) for one in (was.kernels[k], d_kernel)]
                spread = torch.matmul(maps.kernel, torch.cat(pair, dim=2).view(networks, 9, -1))
                products.append((tiles.view(networks * 16, -1, 2 * into), spread.view(networks * 16, 2 * into, out)))
                d_made = self._outputs(torch.bmm(*products[-1]), d_bias)
            d_made = d_made.view(networks, 4, -1).mul_(was.open[k])
            d_pool = d_made.mean(dim=1).view(networks, images, grid.high, grid.wide, out)
        d_slope = self.dense.backward(dense, d_dense, was.dense, d_pool.view(networks, images, -1), share)
        d_pulled = d_slope.view(networks, images, *self.last, -1)
        for k in reversed(range(1, self.blocks)):
            _, into, out = self.layers.convolutions[k]
            d_kernel, d_bias = d_convolutions[k]
            both = self._back(was.open[k], d_pulled, was.pulled[k])
            d_back, back = both[..., :out], both[..., out:]
            tiles, spread = products[k - 1]
            turned = torch.bmm(d_back, spread[:, :into].mT).baddbmm_(back, spread[:, into:].mT)
            turned = torch.matmul(maps.inputs_back, turned.view(networks, 16, -1))
            d_pulled = self.grids[k].untiled(turned, images)
            along = torch.bmm(tiles[..., into:].mT, d_back).baddbmm_(tiles[..., :into].mT, back)
            self._turn(d_kernel, d_bias, along, d_back)
        out = self.layers.convolutions[0][2]
        opened = self._opened(was.open[0], d_pulled, was.pulled[0]).view(networks, -1, 2 * out)
        turned = torch.bmm(opened, torch.cat([was.kernels[0], adjoint[0]], dim=2).mT)
        adjoint[0].baddbmm_(columns.mT, opened[..., :out], alpha=-self.lr)
        return self.grids[0].uncolumned(turned, images, self.channels).permute(0, 1, 4, 2, 3)

    def _split(self, state: list[Tensor]) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
        """(kernel, bias) of every convolution, the first bias a row of its kernel; the state of the dense layers."""
        cut = 2 * len(self.layers.convolutions) - 1
        first, row = state[0], 9 * self.channels
        return [(first, first[:, row : row + 1]), *zip(state[1:cut:2], state[2:cut:2], strict=True)], state[cut:]

    def _columns(self, inputs: Tensor) -> Tensor:
        grid = self.grids[0]
        return grid.columns(grid.padded(inputs.permute(0, 1, 3, 4, 2)), self.rows)

    def _outputs(self, made: Tensor, bias: Tensor) -> Tensor:
        """From products (networks * 16, tiles, out) to outputs (networks, 4, tiles * out)."""
        made = made.view(len(bias), 16, -1, bias.shape[-1])
        made[:, BIAS] += bias
        return torch.matmul(self.maps.output, made.flatten(2))

    def _opened(self, mask: Tensor, *pulled: Tensor) -> Tensor:
        """Slopes by a block's output to slopes by its convolution's, beside each other in the channels."""
        wide = torch.stack(pulled, dim=-2).mul_(0.25)
        return mask.view(len(mask), 4, *wide.shape[1:4], 1, -1) * wide[:, None]

    def _back(self, mask: Tensor, *pulled: Tensor) -> Tensor:
        """The same, in the space of products: (networks * 16, tiles, channels)."""
        opened = self._opened(mask, *pulled)
        channels = opened.shape[-1] * len(pulled)
        back = torch.matmul(self.maps.output_back, opened.view(len(mask), 4, -1))
        return back.view(len(mask) * 16, -1, channels)

    def _turn(self, kernel: Tensor, bias: Tensor, product: Tensor, back: Tensor) -> None:
        networks = len(kernel)
        kernel.baddbmm_(self.maps.kernel_back.expand(networks, -1, -1), product.view(networks, 16, -1), alpha=-self.lr)
        tiles = back.unflatten(0, (networks, 16))[:, BIAS]  # type: ignore[no-untyped-call]
        bias.sub_(tiles.sum(dim=1, keepdim=True), alpha=self.lr)
