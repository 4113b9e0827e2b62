"""MSE and PSNR: hand-worked numbers, scikit-image, and what happens to shapes and values that are wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import peak_signal_noise_ratio

from fedleak.errors import DataError, ShapeError
from fedleak.metrics import METRICS, mse, mse_pairs, psnr


def images(seed: int, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def test_one_number_per_example_by_hand() -> None:
    original = torch.zeros(3, 1, 2, 2)
    found = torch.tensor([0.1, 0.5, 1.0], dtype=torch.float64).reshape(3, 1, 1, 1).expand(3, 1, 2, 2)
    torch.testing.assert_close(mse(found, original), torch.tensor([0.01, 0.25, 1.0], dtype=torch.float64))
    expected = torch.tensor([20.0, 6.020599913279624, 0.0], dtype=torch.float64)
    torch.testing.assert_close(psnr(found, original), expected)


def test_psnr_agrees_with_scikit_image() -> None:
    original, found = images(1, 4, 3, 9, 7), images(2, 4, 3, 9, 7)
    theirs = [
        peak_signal_noise_ratio(o.double().numpy(), f.double().numpy(), data_range=1.0)
        for o, f in zip(original, found, strict=True)
    ]
    np.testing.assert_allclose(psnr(found, original).numpy(), theirs, rtol=1e-12)


def test_pixels_are_not_clipped() -> None:
    assert psnr(torch.full((1, 1, 2, 2), 11.0), torch.ones(1, 1, 2, 2)).item() == pytest.approx(-20.0)


def test_a_perfect_reconstruction_has_120_decibels() -> None:
    original = images(3, 2, 1, 5, 5)
    assert mse(original, original).tolist() == [0.0, 0.0]
    assert psnr(original, original).tolist() == pytest.approx([120.0, 120.0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_non_finite_reconstruction_scores_as_nothing_found_and_leaves_the_others_alone(bad: float) -> None:
    original, found = images(4, 3, 1, 4, 4), images(5, 3, 1, 4, 4)
    clean = psnr(found, original)
    found[1, 0, 2, 2] = bad
    assert mse(found, original)[1] == METRICS["mse"].nothing == 1.0
    assert psnr(found, original)[1] == METRICS["psnr"].nothing == 0.0
    assert torch.equal(psnr(found, original)[[0, 2]], clean[[0, 2]])


def test_huge_values_stay_finite() -> None:
    original = torch.zeros(2, 1, 2, 2, dtype=torch.float64)
    found = torch.tensor([1e30, 1e200], dtype=torch.float64).reshape(2, 1, 1, 1).expand(2, 1, 2, 2)
    assert psnr(found, original).tolist() == pytest.approx([-600.0, 0.0])


@pytest.mark.parametrize(
    ("found", "original"),
    [
        ((2, 1, 4, 4), (1, 1, 4, 4)),
        ((2, 1, 4, 4), (2, 3, 4, 4)),
        ((2, 1, 4, 4), (2, 1, 1, 4)),
        ((4, 4), (4, 4)),
        ((1, 4, 4), (1, 4, 4)),
    ],
)
@pytest.mark.parametrize("metric", [mse, psnr])
def test_shapes_that_would_broadcast_are_an_error(metric, found, original) -> None:
    with pytest.raises(ShapeError, match="found="):
        metric(torch.zeros(found), torch.zeros(original))


def test_bytes_are_refused_because_their_scale_would_be_wrong() -> None:
    with pytest.raises(DataError, match=r"divide bytes by 255"):
        mse(torch.zeros(1, 1, 2, 2, dtype=torch.uint8), torch.zeros(1, 1, 2, 2))


def test_a_damaged_original_is_the_evaluators_mistake() -> None:
    original = torch.zeros(1, 1, 2, 2)
    original[0, 0, 0, 0] = torch.nan
    with pytest.raises(DataError, match="original"):
        mse(torch.zeros(1, 1, 2, 2), original)


def test_pairs_are_the_single_scores_of_every_pair() -> None:
    found, original = images(6, 5, 2, 3, 4), images(7, 7, 2, 3, 4)
    found[3] = original[2] + 1e-6  # a small distance that a matrix-product formula would lose
    pairs = mse_pairs(found, original)
    assert pairs.shape == (5, 7)
    for i in range(5):
        one = found[i : i + 1].expand(7, -1, -1, -1)
        torch.testing.assert_close(pairs[i], mse(one, original), rtol=1e-9, atol=0.0)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 2**31), st.floats(0.01, 0.9), st.floats(1.5, 10.0))
def test_ten_times_the_error_costs_20_decibels(seed: int, size: float, factor: float) -> None:
    original = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    error = (images(seed, 1, 1, 4, 4).double() - 0.5) * size
    drop = psnr(error, original) - psnr(error * factor, original)
    assert drop.item() == pytest.approx(20.0 * np.log10(factor), abs=1e-9)
