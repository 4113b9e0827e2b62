"""GPU kernels in Triton for 3x3 convolutions with 2x2 pooling, of many networks at once.

Pictures are (networks, images, height, width, channels), kernels (networks, 9 * in, out) in the order of the places in
the 3x3 window. `open_` is one byte per output of a convolution, in the order (networks, pooling windows, place in the
window, channels): whether its ReLU lets it through. Sums of two products (PAIRS = 2) are what the product rule makes
of one.

PRECISION is how factors are rounded: "tf32x3" splits each into two TF32 numbers and multiplies three of the four pairs,
which keeps about 21 of float32's 24 bits; "tf32" keeps 10.

This module can be imported only where Triton can be.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["convolve_back", "convolve_pool", "kernel_slope", "unpool"]


@triton.jit
def _taps(
    sums,
    pictures,
    kernel,
    image,
    row,
    column,
    there,
    wanted,
    height,
    width,
    INTO: tl.constexpr,
    OUT: tl.constexpr,
    BACK: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Adds the 3x3 neighbourhood of every pixel times the kernel, or where BACK the transpose of that."""
    DEPTH: tl.constexpr = OUT if BACK else INTO
    for step in range((9 * DEPTH + BK - 1) // BK):
        if DEPTH % BK == 0:
            # One place in the window at a time: scalars, and neighbours in memory stay neighbours.
            tap = step // (DEPTH // BK)
            depth = step % (DEPTH // BK) * BK + tl.arange(0, BK)
            inside = depth < DEPTH
            down = tap // 3 - 1
            right = tap % 3 - 1
            if BACK:
                down, right = -down, -right
            near = (row + down)[:, None]
            beside = (column + right)[:, None]
            window = (tap * INTO * OUT).to(tl.int32)
        else:
            place = step * BK + tl.arange(0, BK)
            inside = place < 9 * DEPTH
            tap_of = place // DEPTH
            depth = place % DEPTH
            down_of = tap_of // 3 - 1
            right_of = tap_of % 3 - 1
            if BACK:
                down_of, right_of = -down_of, -right_of
            near = row[:, None] + down_of[None, :]
            beside = column[:, None] + right_of[None, :]
            window = (tap_of * INTO * OUT)[:, None]
        seen = there[:, None] & inside[None, :] & (near >= 0) & (near < height) & (beside >= 0) & (beside < width)
        at = ((image[:, None] * height + near) * width + beside) * DEPTH + depth[None, :]
        left = tl.load(pictures + at, mask=seen, other=0.0)
        if BACK:
            weights = kernel + window + wanted[None, :] * OUT + depth[:, None]
            right_part = tl.load(weights, mask=inside[:, None] & (wanted < INTO)[None, :], other=0.0)
        else:
            weights = kernel + window + depth[:, None] * OUT + wanted[None, :]
            right_part = tl.load(weights, mask=inside[:, None] & (wanted < OUT)[None, :], other=0.0)
        sums = tl.dot(left, right_part, sums, input_precision=PRECISION)
    return sums


@triton.jit(do_not_specialize=["images"])
def convolve_pool(
    pictures,
    kernel,
    pictures2,
    kernel2,
    bias,
    open_,
    pooled,
    images,
    height,
    width,
    INTO: tl.constexpr,
    OUT: tl.constexpr,
    PAIRS: tl.constexpr,
    DECIDES: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Convolves, lets through what is positive (DECIDES, and says so in `open`) or what `open` says, and pools."""
    net = tl.program_id(2).to(tl.int64)
    high, wide = height // 2, width // 2
    rows = images * high * wide * 4
    spot = tl.program_id(0) * BM + tl.arange(0, BM)
    there = spot < rows
    window = spot // 4
    column = window % wide * 2 + spot % 2
    row = window // wide % high * 2 + spot % 4 // 2
    image = window // (wide * high)
    wanted = tl.program_id(1) * BN + tl.arange(0, BN)
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    size = images.to(tl.int64) * height * width * INTO
    sums = _taps(
        sums, pictures + net * size, kernel + net * 9 * INTO * OUT, image, row, column, there, wanted, height, width,
        INTO, OUT, False, BK, PRECISION,
    )  # fmt: skip
    if PAIRS == 2:
        sums = _taps(
            sums, pictures2 + net * size, kernel2 + net * 9 * INTO * OUT, image, row, column, there, wanted, height,
            width, INTO, OUT, False, BK, PRECISION,
        )  # fmt: skip
    known = wanted < OUT
    sums += tl.load(bias + net * OUT + wanted, mask=known, other=0.0)[None, :]
    at = net * rows * OUT + spot[:, None] * OUT + wanted[None, :]
    held = there[:, None] & known[None, :]
    if DECIDES:
        tl.store(open_ + at, (sums > 0).to(tl.int8), mask=held)
        sums = tl.where(sums <= 0, 0.0, sums)  # what is not a number stays so
    else:
        sums = tl.where(tl.load(open_ + at, mask=held, other=0) != 0, sums, 0.0)
    means = tl.sum(tl.reshape(sums, (BM // 4, 4, BN)), axis=1) * 0.25
    first = tl.program_id(0) * (BM // 4) + tl.arange(0, BM // 4)
    where = net * (rows // 4) * OUT + first[:, None] * OUT + wanted[None, :]
    tl.store(pooled + where, means, mask=(first < rows // 4)[:, None] & known[None, :])


@triton.jit(do_not_specialize=["images"])
def convolve_back(
    back,
    kernel,
    back2,
    kernel2,
    made,
    images,
    height,
    width,
    INTO: tl.constexpr,
    OUT: tl.constexpr,
    PAIRS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Slopes by a convolution's outputs (an odd last row or column left out) to slopes by its inputs."""
    net = tl.program_id(2).to(tl.int64)
    tall, broad = height // 2 * 2, width // 2 * 2
    rows = images * height * width
    spot = tl.program_id(0) * BM + tl.arange(0, BM)
    there = spot < rows
    column = spot % width
    row = spot // width % height
    image = spot // (width * height)
    wanted = tl.program_id(1) * BN + tl.arange(0, BN)
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    size = images.to(tl.int64) * tall * broad * OUT
    sums = _taps(
        sums, back + net * size, kernel + net * 9 * INTO * OUT, image, row, column, there, wanted, tall, broad,
        INTO, OUT, True, BK, PRECISION,
    )  # fmt: skip
    if PAIRS == 2:
        sums = _taps(
            sums, back2 + net * size, kernel2 + net * 9 * INTO * OUT, image, row, column, there, wanted, tall, broad,
            INTO, OUT, True, BK, PRECISION,
        )  # fmt: skip
    at = net * rows * INTO + spot[:, None] * INTO + wanted[None, :]
    tl.store(made + at, sums, mask=there[:, None] & (wanted < INTO)[None, :])


@triton.jit(do_not_specialize=["images"])
def kernel_slope(
    pictures,
    back,
    pictures2,
    back2,
    made,
    images,
    height,
    width,
    PER: tl.constexpr,
    ROWS: tl.constexpr,
    INTO: tl.constexpr,
    OUT: tl.constexpr,
    PAIRS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Slopes by the kernel, (networks, parts, ROWS, out), from PER pixels to a part. Where ROWS is 9 * in + 1 the
    last row is the slope by the bias, of the first pair."""
    net = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1)
    across = (OUT + BN - 1) // BN
    place = tl.program_id(0) // across * BM + tl.arange(0, BM)
    wanted = tl.program_id(0) % across * BN + tl.arange(0, BN)
    tall, broad = height // 2 * 2, width // 2 * 2
    pixels = images * tall * broad
    tap = place // INTO
    down, right, depth = tap // 3 - 1, tap % 3 - 1, place % INTO
    inside, known = place < 9 * INTO, wanted < OUT
    pictures += net * images * height * width * INTO
    pictures2 += net * images * height * width * INTO
    back += net * pixels * OUT
    back2 += net * pixels * OUT
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, PER, BK):
        spot = part * PER + start + tl.arange(0, BK)
        there = spot < pixels
        near = (spot // broad % tall)[None, :] + down[:, None]
        beside = (spot % broad)[None, :] + right[:, None]
        image = spot // (broad * tall)
        at = ((image[None, :] * height + near) * width + beside) * INTO + depth[:, None]
        seen = inside[:, None] & there[None, :] & (near >= 0) & (near < height) & (beside >= 0) & (beside < width)
        slopes = spot[:, None] * OUT + wanted[None, :]
        held = there[:, None] & known[None, :]
        left = tl.load(pictures + at, mask=seen, other=0.0)
        if ROWS > 9 * INTO:
            left = tl.where((place == 9 * INTO)[:, None] & there[None, :], 1.0, left)
        sums = tl.dot(left, tl.load(back + slopes, mask=held, other=0.0), sums, input_precision=PRECISION)
        if PAIRS == 2:
            left = tl.load(pictures2 + at, mask=seen, other=0.0)
            sums = tl.dot(left, tl.load(back2 + slopes, mask=held, other=0.0), sums, input_precision=PRECISION)
    out = (net * tl.num_programs(1) + part) * ROWS * OUT + place[:, None] * OUT + wanted[None, :]
    tl.store(made + out, sums, mask=(place < ROWS)[:, None] & known[None, :])


@triton.jit
def unpool(
    pulled,
    pulled2,
    open_,
    back,
    back2,
    windows,
    high,
    wide,
    OUT: tl.constexpr,
    PAIRS: tl.constexpr,
    BW: tl.constexpr,
    BN: tl.constexpr,
):
    """Slopes by a block's output to slopes by its convolution's. `windows` counts those of all networks."""
    window = tl.program_id(0) * BW + tl.arange(0, BW)
    channel = tl.arange(0, BN)
    held = (window < windows)[:, None] & (channel < OUT)[None, :]
    window = window.to(tl.int64)
    at = window[:, None] * OUT + channel[None, :]
    quarter = tl.load(pulled + at, mask=held, other=0.0) * 0.25
    quarter2 = quarter
    if PAIRS == 2:
        quarter2 = tl.load(pulled2 + at, mask=held, other=0.0) * 0.25
    row, column = window // wide, window % wide  # of windows, counted through all images
    for place in tl.static_range(4):
        lets = tl.load(open_ + (window * 4 + place)[:, None] * OUT + channel[None, :], mask=held, other=0) != 0
        pixel = (row * 2 + place // 2) * (2 * wide) + column * 2 + place % 2
        to = pixel[:, None] * OUT + channel[None, :]
        tl.store(back + to, tl.where(lets, quarter, 0.0), mask=held)
        if PAIRS == 2:
            tl.store(back2 + to, tl.where(lets, quarter2, 0.0), mask=held)
