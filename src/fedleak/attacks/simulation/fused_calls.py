"""How the kernels of conv_kernels.py and dense_kernels.py are called: shapes, tiles and how work is cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedleak.attacks.simulation import conv_kernels, dense_kernels
from fedleak.attacks.simulation.dense_steps import TorchProducts

__all__ = ["FusedProducts", "back", "opened", "pooled", "slope_by_kernel"]

Pairs = list[tuple[Tensor, Tensor]]
"""One or two products, which are summed."""

MOST = 64
"""Images of a batch whose slopes one program can hold."""
PROGRAMS = 528
"""Programs that keep a GPU busy: four on each of an H200's multiprocessors."""


@dataclass(frozen=True)
class Tile:
    """Rows, columns and depth of the products that a program takes at once; its warps; loads ahead."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    def options(self) -> dict[str, Any]:
        return {
            "BM": self.rows,
            "BN": self.columns,
            "BK": self.depth,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


TILES: dict[str, Tile] = {
    "pooled": Tile(128, 64, 32, 4, 3),
    "pooled first": Tile(128, 32, 32, 4, 1),
    "back": Tile(128, 64, 32, 4, 3),
    "back first": Tile(64, 16, 64, 2, 2),
    "slope": Tile(32, 128, 32, 4, 3),
    "slope first": Tile(32, 64, 32, 2, 4),
    "ahead": Tile(16, 256, 16, 4, 4),
    "turn": Tile(64, 32, 0, 4, 1),
    "d_turn": Tile(64, 32, 0, 4, 1),
}
"""The largest tile of every call; "first" is a block whose pictures have few channels. The
fastest of about ten each on an H200, CIFAR-100's network, batches of 5, 100 clients."""


def pooled(pairs: Pairs, bias: Tensor, lets: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Pictures convolved, passed through the ReLU and pooled, and where the ReLU is open: given, or found here."""
    pictures, kernel = pairs[0]
    networks, images, height, width, into = pictures.shape
    out, high, wide = kernel.shape[-1], height // 2, width // 2
    made = pictures.new_empty(networks, images, high, wide, out)
    decides = lets is None
    if lets is None:
        lets = torch.empty(networks, images, high, wide, 4, out, dtype=torch.int8, device=pictures.device)
    tile = _tile("pooled", out, into, into)
    rows = images * high * wide * 4
    grid = (_ceil(rows, tile.rows), _ceil(out, tile.columns), networks)
    conv_kernels.convolve_pool[grid](
        *pairs[0], *pairs[-1], bias, lets, made, images, height, width,
        INTO=into, OUT=out, PAIRS=len(pairs), DECIDES=decides, PRECISION=_precision(), **tile.options(),
    )  # fmt: skip
    return made, lets


def back(pairs: Pairs, size: tuple[int, int]) -> Tensor:
    """Slopes by a convolution's outputs, with kernels, to slopes by its inputs of that height and width."""
    slopes, kernel = pairs[0]
    networks, images, out = slopes.shape[0], slopes.shape[1], slopes.shape[-1]
    (height, width), into = size, kernel.shape[1] // 9
    made = slopes.new_empty(networks, images, height, width, into)
    tile = _tile("back", into, out, into)
    grid = (_ceil(images * height * width, tile.rows), _ceil(into, tile.columns), networks)
    conv_kernels.convolve_back[grid](
        *pairs[0], *pairs[-1], made, images, height, width,
        INTO=into, OUT=out, PAIRS=len(pairs), PRECISION=_precision(), **tile.options(),
    )  # fmt: skip
    return made


def slope_by_kernel(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Slopes by kernel and bias from (pictures, slopes by the outputs of the convolution); by the bias, of the first
    pair."""
    pictures, slopes = pairs[0]
    networks, images, height, width, into = pictures.shape
    out = slopes.shape[-1]
    tile = _tile("slope", out, TILES["slope"].depth, into)
    # With few input channels the row of ones that yields the bias's slope fits into the last tile.
    beside = 9 * into < tile.rows
    rows = 9 * into + beside
    pixels = images * (height // 2) * (width // 2) * 4
    tiles = _ceil(rows, tile.rows) * _ceil(out, tile.columns)
    parts = max(1, min(PROGRAMS // (tiles * networks), pixels // (8 * tile.depth)))
    per = _ceil(_ceil(pixels, parts), tile.depth) * tile.depth
    parts = _ceil(pixels, per)
    made = pictures.new_empty(networks, parts, rows, out)
    conv_kernels.kernel_slope[tiles, parts, networks](
        *pairs[0], *pairs[-1], made, images, height, width,
        PER=per, ROWS=rows, INTO=into, OUT=out, PAIRS=len(pairs), PRECISION=_precision(), **tile.options(),
    )  # fmt: skip
    found = made.sum(dim=1) if parts > 1 else made[:, 0]
    return found[:, : 9 * into], found[:, -1] if beside else slopes.sum(dim=(1, 2, 3))


def opened(lets: Tensor, *pulled: Tensor) -> list[Tensor]:
    """Slopes by a block's output to slopes by its convolution's, for one or two at once."""
    networks, images, high, wide, out = pulled[0].shape
    made = [one.new_empty(networks, images, 2 * high, 2 * wide, out) for one in pulled]
    windows, columns = networks * images * high * wide, _power(out)
    rows = max(1, 2048 // columns)
    conv_kernels.unpool[(_ceil(windows, rows),)](
        pulled[0], pulled[-1], lets, made[0], made[-1], windows, high, wide,
        OUT=out, PAIRS=len(pulled), BW=rows, BN=columns, num_warps=4,
    )  # fmt: skip
    return made


class FusedProducts:
    """A step's products with matrices, which are read and written as seldom as can be. Large batches are left to
    torch: their products are no longer bound by memory."""

    def __init__(self) -> None:
        self.large = TorchProducts()

    def ahead(self, inputs: Tensor, matrix: Tensor) -> Tensor:
        return _ahead([(inputs, matrix)]) if inputs.shape[1] <= MOST else self.large.ahead(inputs, matrix)

    def turn(self, matrix: Tensor, inputs: Tensor, slope: Tensor, lr: float) -> Tensor:
        if inputs.shape[1] > MOST:
            return self.large.turn(matrix, inputs, slope, lr)
        inputs, slope = inputs.contiguous(), slope.contiguous()
        before = torch.empty_like(inputs)
        tile, grid = _across("turn", inputs, matrix)
        dense_kernels.dense_turn[grid](
            matrix, inputs, slope, before, lr, *inputs.shape[1:], OUT=matrix.shape[-1], PRECISION=_precision(), **tile
        )
        return before

    def d_ahead(
        self, matrix: Tensor, d_matrix: Tensor, inputs: Tensor, d_inputs: Tensor, slope: Tensor, lr: float
    ) -> Tensor:
        if inputs.shape[1] > MOST:
            return self.large.d_ahead(matrix, d_matrix, inputs, d_inputs, slope, lr)
        # The matrix from before the step is matrix + lr inputs' slope: no need to write it down for this product.
        made = _ahead([(inputs, d_matrix), (d_inputs.contiguous(), matrix)])
        return made.baddbmm_(torch.bmm(d_inputs, inputs.mT), slope, alpha=lr)

    def d_turn(
        self,
        matrix: Tensor,
        d_matrix: Tensor,
        inputs: Tensor,
        d_inputs: Tensor,
        slope: Tensor,
        d_slope: Tensor,
        lr: float,
    ) -> Tensor:
        if inputs.shape[1] > MOST:
            return self.large.d_turn(matrix, d_matrix, inputs, d_inputs, slope, d_slope, lr)
        d_inputs, d_slope = d_inputs.contiguous(), d_slope.contiguous()
        d_before = torch.empty_like(inputs)
        tile, grid = _across("d_turn", inputs, matrix)
        dense_kernels.dense_back[grid](
            matrix, d_matrix, inputs, slope, d_inputs, d_slope, d_before, lr, *inputs.shape[1:],
            OUT=matrix.shape[-1], PRECISION=_precision(), **tile,
        )  # fmt: skip
        return d_before


def _ahead(pairs: Pairs) -> Tensor:
    inputs, matrix = pairs[0]
    networks, images, features = inputs.shape
    out, tile = matrix.shape[-1], TILES["ahead"]
    # A batch that is too large for one tile of rows takes fewer columns instead.
    columns = min(tile.columns * tile.rows // _power(images), _power(out))
    across = _ceil(out, columns)
    parts = max(1, min(PROGRAMS // (networks * across), features // (4 * tile.depth)))
    per = _ceil(_ceil(features, parts), tile.depth) * tile.depth
    parts = _ceil(features, per)
    made = inputs.new_empty(networks, parts, images, out)
    dense_kernels.dense_ahead[parts, across, networks](
        *pairs[0], *pairs[-1], made, images, features, PER=per, OUT=out, PAIRS=len(pairs), PRECISION=_precision(),
        **{**tile.options(), "BM": _power(images), "BN": columns},
    )  # fmt: skip
    return made.sum(dim=1) if parts > 1 else made[:, 0]


def _across(kind: str, inputs: Tensor, matrix: Tensor) -> tuple[dict[str, Any], tuple[int, int]]:
    """Tiles over the features of a matrix, each of which takes its outputs one after the other; the grid of them."""
    networks, images, features = inputs.shape
    tile, deep = TILES[kind], _power(images)
    rows = tile.rows if deep <= 32 else 16  # more would not fit a program's registers
    wide = min(tile.columns, _power(matrix.shape[-1]))
    options = {"BM": deep, "BN": wide, "BF": rows, "num_warps": tile.warps, "num_stages": tile.stages}
    return options, (_ceil(features, rows), networks)


def _tile(kind: str, columns: int, depth: int, into: int) -> Tile:
    """A tile for so many columns of the product, summed over a multiple of `depth`; `into` are the input channels."""
    tile = TILES[kind if into >= 16 else f"{kind} first"]
    rows = min(tile.rows, _power(9 * into + 1)) if kind == "slope" else tile.rows
    # Where a place in the window has few channels the places stand beside each other.
    depth = min(tile.depth, _power(depth) if depth >= 16 else _power(9 * depth))
    return Tile(rows, min(tile.columns, _power(columns)), depth, tile.warps, tile.stages)


def _precision() -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


def _ceil(number: int, by: int) -> int:
    return -(-number // by)


def _power(number: int) -> int:
    """The next power of two that a product's side may be."""
    return max(16, 1 << (number - 1).bit_length())
