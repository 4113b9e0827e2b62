"""GPU kernels in Triton for dense layers of many networks, which pass over the matrices as seldom as can be.

Matrices are (networks, in, out). PRECISION is that of conv_kernels.py. This module can be imported only where Triton
can be.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["dense_ahead", "dense_back", "dense_turn"]


@triton.jit(do_not_specialize=["images"])
def dense_ahead(
    inputs,
    matrix,
    inputs2,
    matrix2,
    made,
    images,
    features,
    PER: tl.constexpr,
    OUT: tl.constexpr,
    PAIRS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Inputs (networks, images, in) times matrices, in parts (networks, parts, images, out) of PER features each."""
    net = tl.program_id(2).to(tl.int64)
    part = tl.program_id(0)
    image, wanted = tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    there, known = image < images, wanted < OUT
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    inputs += net * images * features
    matrix += net * features * OUT
    inputs2 += net * images * features
    matrix2 += net * features * OUT
    for start in range(0, PER, BK):
        feature = part * PER + start + tl.arange(0, BK)
        inside = feature < features
        left = image[:, None] * features + feature[None, :]
        right = feature[:, None] * OUT + wanted[None, :]
        seen, held = there[:, None] & inside[None, :], inside[:, None] & known[None, :]
        one = tl.load(inputs + left, mask=seen, other=0.0)
        sums = tl.dot(one, tl.load(matrix + right, mask=held, other=0.0), sums, input_precision=PRECISION)
        if PAIRS == 2:
            two = tl.load(inputs2 + left, mask=seen, other=0.0)
            sums = tl.dot(two, tl.load(matrix2 + right, mask=held, other=0.0), sums, input_precision=PRECISION)
    out = (net * tl.num_programs(0) + part) * images * OUT + image[:, None] * OUT + wanted[None, :]
    tl.store(made + out, sums, mask=there[:, None] & known[None, :])


@triton.jit(do_not_specialize=["images"])
def dense_turn(
    matrix,
    inputs,
    slopes,
    before,
    lr,
    images,
    features,
    OUT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BF: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One step of SGD on matrices, and from before it the slopes by their inputs, in one pass over the matrices."""
    net = tl.program_id(1).to(tl.int64)
    feature, image = tl.program_id(0) * BF + tl.arange(0, BF), tl.arange(0, BM)
    inside, there = feature < features, image < images
    own = (net * images + image[None, :]) * features + feature[:, None]
    both = inside[:, None] & there[None, :]
    given = tl.load(inputs + own, mask=both, other=0.0)
    made = tl.zeros((BF, BM), dtype=tl.float32)
    for start in range(0, OUT, BN):
        wanted = start + tl.arange(0, BN)
        known = wanted < OUT
        at = matrix + net * features * OUT + feature[:, None] * OUT + wanted[None, :]
        held = inside[:, None] & known[None, :]
        here = net * images * OUT + image[:, None] * OUT + wanted[None, :]
        slope = tl.load(slopes + here, mask=there[:, None] & known[None, :], other=0.0)
        tile = tl.load(at, mask=held, other=0.0)
        made = tl.dot(tile, tl.trans(slope), made, input_precision=PRECISION)
        tl.store(at, tile - lr * tl.dot(given, slope, input_precision=PRECISION), mask=held)
    tl.store(before + own, made, mask=both)


@triton.jit(do_not_specialize=["images"])
def dense_back(
    matrix,
    adjoint,
    inputs,
    slopes,
    d_inputs,
    d_slopes,
    d_before,
    lr,
    images,
    features,
    OUT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BF: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The way back over dense_turn: undoes it in `matrix`, takes `adjoint` back, derivatives of what it had made."""
    net = tl.program_id(1).to(tl.int64)
    feature, image = tl.program_id(0) * BF + tl.arange(0, BF), tl.arange(0, BM)
    inside, there = feature < features, image < images
    own = (net * images + image[None, :]) * features + feature[:, None]
    both = inside[:, None] & there[None, :]
    given, d_given = tl.load(inputs + own, mask=both, other=0.0), tl.load(d_inputs + own, mask=both, other=0.0)
    made = tl.zeros((BF, BM), dtype=tl.float32)
    for start in range(0, OUT, BN):
        wanted = start + tl.arange(0, BN)
        known = wanted < OUT
        at = net * features * OUT + feature[:, None] * OUT + wanted[None, :]
        held = inside[:, None] & known[None, :]
        here = net * images * OUT + image[:, None] * OUT + wanted[None, :]
        read = there[:, None] & known[None, :]
        slope, d_slope = tl.load(slopes + here, mask=read, other=0.0), tl.load(d_slopes + here, mask=read, other=0.0)
        tile = tl.load(matrix + at, mask=held, other=0.0)
        tile += lr * tl.dot(given, slope, input_precision=PRECISION)
        tl.store(matrix + at, tile, mask=held)
        made = tl.dot(tile, tl.trans(d_slope), made, input_precision=PRECISION)
        tile = tl.load(adjoint + at, mask=held, other=0.0)
        made = tl.dot(tile, tl.trans(slope), made, input_precision=PRECISION)
        moved = tl.dot(given, d_slope, input_precision=PRECISION)
        moved = tl.dot(d_given, slope, moved, input_precision=PRECISION)
        tl.store(adjoint + at, tile - lr * moved, mask=held)
    tl.store(d_before + own, made, mask=both)
