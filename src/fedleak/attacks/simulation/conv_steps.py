"""Steps of SGD, and the way back, written out for the networks that the FedAvg paper attacks.

Every layer's derivatives are known, so nothing is recorded by autograd. A step keeps what the way back needs. Dense
layers keep the factors of their gradient and are *undone* on the way back instead of being stored: their gradient has
the rank of the batch, and their weights are nearly all there is to store.

On the way back the gradient's derivative along the adjoint is computed forward over backward: a name with `d_` in front
is the derivative of what it names. ReLU's second derivative is zero, and the inputs do not move.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedleak.attacks.simulation.conv_layers import Layers, States
from fedleak.attacks.simulation.tiles import BIAS, Maps
from fedleak.types import Named

__all__ = ["ConvSteps"]


@dataclass(frozen=True, eq=False)
class _Kept:
    """What one step leaves for its way back. Blocks and dense layers in the order of the network."""

    kernels: list[Tensor]
    """Of the convolutions, as they were before the step."""
    masks: list[Tensor]
    """Per block (networks, 4, ...): where its ReLU is open, by place in the pooling window."""
    pools: list[Tensor]
    """Outputs of all blocks but the last."""
    pulled: list[Tensor]
    """The loss's slope by the output of every block."""
    hidden: list[Tensor]
    """Inputs of the dense layers."""
    slopes: list[Tensor]
    """The loss's slope by the outputs of the dense layers."""
    chances: Tensor

    def flat(self) -> list[Tensor]:
        return [*self.kernels, *self.masks, *self.pools, *self.pulled, *self.hidden, *self.slopes, self.chances]

    @staticmethod
    def of(flat: list[Tensor], blocks: int, dense: int) -> _Kept:
        rest = iter(flat)
        kernels, masks, pools, pulled, hidden, slopes = (
            [next(rest) for _ in range(size)] for size in (blocks, blocks, blocks - 1, blocks, dense, dense)
        )
        return _Kept(kernels, masks, pools, pulled, hidden, slopes, next(rest))


class ConvSteps(States):
    """One step forward and one step back for many networks, each with weights of its own."""

    def __init__(self, layers: Layers, weights: Named, input_shape: tuple[int, ...], lr: float) -> None:
        super().__init__(layers, weights, input_shape)
        self.lr = lr
        self.maps = Maps(next(iter(weights.values())))
        self.blocks = len(layers.convolutions)

    def forward(self, state: list[Tensor], inputs: Tensor, labels: Tensor, share: Tensor | None) -> list[Tensor]:
        maps, lr = self.maps, self.lr
        networks, images = labels.shape
        convolutions, dense = self.split(state)
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
        hidden = [pools.pop().view(networks, images, -1)]
        for matrix, bias in dense:
            hidden.append(torch.baddbmm(bias, hidden[-1], matrix))
            if len(hidden) <= len(dense):
                hidden[-1].clamp_min_(0)
        chances = hidden.pop().softmax(dim=-1)
        hit = torch.zeros_like(chances).scatter_(2, labels[:, :, None], 1.0)
        slope = (chances - hit) * _weight(share, images)
        slopes: list[Tensor] = []
        for k in reversed(range(len(dense))):
            matrix, bias = dense[k]
            slopes.insert(0, slope)
            before = torch.bmm(slope, matrix.mT)
            self._move(matrix, bias, hidden[k], slope, -lr)
            slope = before.mul_(hidden[k] > 0) if k else before
        pulled = [slope.view(networks, images, *self.last, -1)]
        for k in reversed(range(1, self.blocks)):
            kernel, bias = convolutions[k]
            back = self._back(masks[k], pulled[0])
            tiles, spread = products[k - 1]
            turned = torch.matmul(maps.inputs_back, torch.bmm(back, spread.mT).view(networks, 16, -1))
            pulled.insert(0, self.grids[k].untiled(turned, images).contiguous())
            self._turn(kernel, bias, torch.bmm(tiles.mT, back), back)
        opened = self._opened(masks[0], pulled[0]).view(networks, -1, state[0].shape[-1])
        state[0].baddbmm_(columns.mT, opened, alpha=-lr)
        return _Kept(kernels, masks, pools, pulled, hidden, slopes, chances).flat()

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
        _, dense = self.split(state)
        d_convolutions, d_dense = self.split(adjoint)
        was = _Kept.of(kept, self.blocks, len(dense))
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
            d_made = d_made.view(networks, 4, -1).mul_(was.masks[k])
            d_pool = d_made.mean(dim=1).view(networks, images, grid.high, grid.wide, out)
        d_slope, d_hidden = self._dense_ahead(dense, d_dense, was, d_pool.view(networks, images, -1), share)
        d_pulled = self._dense_back(dense, d_dense, was, d_hidden, d_slope).view(networks, images, *self.last, -1)
        for k in reversed(range(1, self.blocks)):
            _, into, out = self.layers.convolutions[k]
            d_kernel, d_bias = d_convolutions[k]
            both = self._back(was.masks[k], d_pulled, was.pulled[k])
            d_back, back = both[..., :out], both[..., out:]
            tiles, spread = products[k - 1]
            turned = torch.bmm(d_back, spread[:, :into].mT).baddbmm_(back, spread[:, into:].mT)
            turned = torch.matmul(maps.inputs_back, turned.view(networks, 16, -1))
            d_pulled = self.grids[k].untiled(turned, images)
            along = torch.bmm(tiles[..., into:].mT, d_back).baddbmm_(tiles[..., :into].mT, back)
            self._turn(d_kernel, d_bias, along, d_back)
        out = self.layers.convolutions[0][2]
        opened = self._opened(was.masks[0], d_pulled, was.pulled[0]).view(networks, -1, 2 * out)
        turned = torch.bmm(opened, torch.cat([was.kernels[0], adjoint[0]], dim=2).mT)
        adjoint[0].baddbmm_(columns.mT, opened[..., :out], alpha=-self.lr)
        return self.grids[0].uncolumned(turned, images, self.channels).permute(0, 1, 4, 2, 3)

    def _dense_ahead(
        self,
        dense: list[tuple[Tensor, Tensor]],
        d_dense: list[tuple[Tensor, Tensor]],
        was: _Kept,
        d_first: Tensor,
        share: Tensor | None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Undoes the dense layers' step; derivatives of the loss's slope by the outputs, and of every layer's input."""
        d_hidden = [d_first]
        for k, ((matrix, bias), (d_matrix, d_bias)) in enumerate(zip(dense, d_dense, strict=True)):
            self._move(matrix, bias, was.hidden[k], was.slopes[k], self.lr)
            d_made = torch.baddbmm(d_bias, was.hidden[k], d_matrix).baddbmm_(d_hidden[-1], matrix)
            d_hidden.append(d_made.mul_(was.hidden[k + 1] > 0) if k + 1 < len(dense) else d_made)
        d_scores, chances = d_hidden.pop(), was.chances
        d_chances = chances * (d_scores - (chances * d_scores).sum(dim=-1, keepdim=True))
        return d_chances * _weight(share, d_first.shape[1]), d_hidden

    def _dense_back(
        self,
        dense: list[tuple[Tensor, Tensor]],
        d_dense: list[tuple[Tensor, Tensor]],
        was: _Kept,
        d_hidden: list[Tensor],
        d_slope: Tensor,
    ) -> Tensor:
        for k in reversed(range(len(dense))):
            d_matrix, d_bias = d_dense[k]
            d_before = torch.bmm(d_slope, dense[k][0].mT).baddbmm_(was.slopes[k], d_matrix.mT)
            left, right = (was.hidden[k], d_hidden[k]), (d_slope, was.slopes[k])
            d_matrix.baddbmm_(torch.cat(left, dim=1).mT, torch.cat(right, dim=1), alpha=-self.lr)
            d_bias.sub_(d_slope.sum(dim=1, keepdim=True), alpha=self.lr)
            d_slope = d_before.mul_(was.hidden[k] > 0) if k else d_before
        return d_slope

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

    def _move(self, matrix: Tensor, bias: Tensor, inputs: Tensor, slope: Tensor, by: float) -> None:
        matrix.baddbmm_(inputs.mT, slope, alpha=by)
        bias.add_(slope.sum(dim=1, keepdim=True), alpha=by)

    def _turn(self, kernel: Tensor, bias: Tensor, product: Tensor, back: Tensor) -> None:
        networks = len(kernel)
        kernel.baddbmm_(self.maps.kernel_back.expand(networks, -1, -1), product.view(networks, 16, -1), alpha=-self.lr)
        tiles = back.unflatten(0, (networks, 16))[:, BIAS]  # type: ignore[no-untyped-call]
        bias.sub_(tiles.sum(dim=1, keepdim=True), alpha=self.lr)


def _weight(share: Tensor | None, images: int) -> Tensor | float:
    """What every image has in the mean loss."""
    return 1 / images if share is None else share[:, :, None]
