"""A 3x3 convolution followed by 2x2 pooling, as products of small matrices for many networks at once.

Winograd's F(2x2, 3x3): a tile of 4x4 inputs makes 2x2 outputs with 16 products per pair of channels where the plain way
takes 36. The tile's outputs are one pooling window. In the space of the 16 products the convolution, its derivative by
the input and its derivative by the kernel are each one batched matrix product over (network, product), and the ways in
and out are linear maps, so derivatives of any order go through the same maps and their transposes.

Images are channels-last: (networks, images, height, width, channels). Tiles are (networks, 16, tiles, channels).
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["BIAS", "Grid", "Maps"]

BIAS = 5
"""The product that reaches all four outputs of a tile with weight one, and no other: a bias is added there."""

Rows = list[list[float]]


class Maps:
    """The linear maps of F(2x2, 3x3) on flattened tiles: Lavin and Gray 2016, section 4.1."""

    def __init__(self, like: Tensor) -> None:
        inputs: Rows = [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]]
        kernel: Rows = [[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]
        output: Rows = [[1, 1, 1, 0], [0, 1, -1, -1]]
        self.inputs, self.kernel, self.output = (_both_ways(rows, like) for rows in (inputs, kernel, output))
        self.inputs_back, self.kernel_back, self.output_back = (
            one.t().contiguous() for one in (self.inputs, self.kernel, self.output)
        )


def _both_ways(rows: Rows, like: Tensor) -> Tensor:
    one = torch.tensor(rows, dtype=torch.float64)
    return torch.kron(one, one).to(like)


class Grid:
    """Where the tiles of an image lie: `high` x `wide` pooling windows; an odd last row or column is not pooled."""

    def __init__(self, height: int, width: int) -> None:
        self.height, self.width = height, width
        self.high, self.wide = height // 2, width // 2

    def padded(self, *images: Tensor) -> Tensor:
        """Images beside each other in the channels, with the zeros around them that the convolution pads with."""
        first = images[0]
        channels = first.shape[-1]
        out = first.new_zeros(*first.shape[:2], 2 * self.high + 2, 2 * self.wide + 2, channels * len(images))
        rows, columns = min(self.height, 2 * self.high + 1), min(self.width, 2 * self.wide + 1)
        for k, one in enumerate(images):
            inside = out[:, :, 1 : rows + 1, 1 : columns + 1, k * channels : (k + 1) * channels]
            inside.copy_(one[:, :, :rows, :columns])
        return out

    def tiles(self, padded: Tensor) -> Tensor:
        """Overlapping tiles of a padded image: (networks, 16, tiles * channels)."""
        networks, images, _, _, channels = padded.shape
        of_net, of_image, of_row, of_column, _ = padded.stride()
        view = padded.as_strided(
            (networks, 4, 4, images, self.high, self.wide, channels),
            (of_net, of_row, of_column, of_image, 2 * of_row, 2 * of_column, 1),
        )
        return view.reshape(networks, 16, -1)

    def untiled(self, tiles: Tensor, images: int) -> Tensor:
        """The transpose of padded and tiles: overlapping tiles (networks, 16, tiles * channels) summed to an image."""
        networks = len(tiles)
        parts = tiles.view(networks, 2, 2, 2, 2, images, self.high, self.wide, -1)
        out = tiles.new_zeros(networks, images, self.high + 1, 2, self.wide + 1, 2, parts.shape[-1])
        for below in (0, 1):
            for right in (0, 1):
                # (networks, row in block, column in block, images, high, wide, channels) to the order of `out`
                part = parts[:, below, :, right].permute(0, 3, 4, 1, 5, 2, 6)
                out[:, :, below : below + self.high, :, right : right + self.wide] += part
        return self.cropped(out.view(networks, images, 2 * self.high + 2, 2 * self.wide + 2, -1))

    def columns(self, padded: Tensor, room: int) -> Tensor:
        """The 3x3 neighbourhood of every pixel, a one for the bias, zeros up to `room`: (networks, 4 * tiles, room).

        Rows are ordered by the place in the pooling window first, as tiles are. For few input channels this is
        cheaper than Winograd's way.
        """
        networks, images, _, _, channels = padded.shape
        of_net, of_image, of_row, of_column, _ = padded.stride()
        view = padded.as_strided(
            (networks, 2, 2, images, self.high, self.wide, 3, 3, channels),
            (of_net, of_row, of_column, of_image, 2 * of_row, 2 * of_column, of_row, of_column, 1),
        )
        out = padded.new_zeros(networks, 4 * images * self.high * self.wide, room)
        out[:, :, : 9 * channels].view(view.shape).copy_(view)
        out[:, :, 9 * channels] = 1
        return out

    def uncolumned(self, columns: Tensor, images: int, channels: int) -> Tensor:
        """The transpose of padded and columns: neighbourhoods (networks, 4 * tiles, room) summed to an image."""
        networks = len(columns)
        parts = columns[:, :, : 9 * channels].view(networks, 2, 2, images, self.high, self.wide, 3, 3, channels)
        out = columns.new_zeros(networks, images, 2 * self.high + 2, 2 * self.wide + 2, channels)
        for row in range(3):
            for column in range(3):
                place = out[:, :, row : row + 2 * self.high, column : column + 2 * self.wide]
                place = place.unflatten(2, (self.high, 2)).unflatten(4, (self.wide, 2))  # type: ignore[no-untyped-call]
                place += parts[:, :, :, :, :, :, row, column].permute(0, 3, 4, 1, 5, 2, 6)
        return self.cropped(out)

    def cropped(self, padded: Tensor) -> Tensor:
        return padded[:, :, 1 : self.height + 1, 1 : self.width + 1]
