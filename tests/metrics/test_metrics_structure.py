"""SSIM against scikit-image with the same window, range and covariance; all pairs against single scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity

from fedleak.errors import RefusedError, ShapeError
from fedleak.metrics import METRICS, ssim, ssim_pairs
from fedleak.metrics.structure import window_size


def pair(seed: int, *shape: int, noise: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    """Smooth pictures and noisy copies, each example with more noise than the one before."""
    rng = torch.Generator().manual_seed(seed)
    n, channels, height, width = shape
    coarse = torch.rand(n, channels, 4, 4, generator=rng)
    original = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=False)
    amount = noise * torch.arange(1, n + 1).reshape(n, 1, 1, 1)
    return original + amount * torch.randn(shape, generator=rng), original


def theirs(found: torch.Tensor, original: torch.Tensor, **options: object) -> list[float]:
    pictures = zip(found.double().numpy(), original.double().numpy(), strict=True)
    return [structural_similarity(f, o, channel_axis=0, **options) for f, o in pictures]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("data_range", [1.0, 2.0])
@pytest.mark.parametrize("window", ["gaussian", "uniform"])
@pytest.mark.parametrize("size", [(11, 11), (28, 28), (20, 33)])
def test_agrees_with_scikit_image(channels, sample, data_range, window, size) -> None:
    found, original = pair(1, 4, channels, *size)
    expected = theirs(
        found,
        original,
        data_range=data_range,
        gaussian_weights=window == "gaussian",
        sigma=1.5,
        use_sample_covariance=sample,
    )
    ours = ssim(found, original, window=window, data_range=data_range, sample_covariance=sample)
    assert ours.dtype == torch.float64
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-9)


@pytest.mark.parametrize(("side", "window"), [(6, 5), (5, 5), (4, 3), (3, 3), (8, 7)])
def test_small_images_get_the_largest_odd_window_that_fits(side: int, window: int) -> None:
    found, original = pair(2, 3, 1, side, side + 3)
    assert window_size("uniform", side, side + 3) == window
    expected = theirs(found, original, data_range=1.0, win_size=window)
    ours = ssim(found, original, window="uniform", sample_covariance=True)
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-9)


def test_a_shrunk_gaussian_window_written_out() -> None:
    """8x8 digits: a 7x7 Gaussian window, 4 positions, by the formula of the paper."""
    found, original = pair(3, 1, 1, 8, 8)
    assert window_size("gaussian", 8, 8) == 7
    line = np.exp(-0.5 * (np.arange(-3, 4) / 1.5) ** 2)
    weights = np.outer(line, line) / line.sum() ** 2
    x, y = found[0, 0].double().numpy(), original[0, 0].double().numpy()
    scores = []
    for i in range(2):
        for j in range(2):
            a, b = x[i : i + 7, j : j + 7], y[i : i + 7, j : j + 7]
            ma, mb = (weights * a).sum(), (weights * b).sum()
            va, vb = (weights * (a - ma) ** 2).sum(), (weights * (b - mb) ** 2).sum()
            cov = (weights * (a - ma) * (b - mb)).sum()
            scores.append((2 * ma * mb + 1e-4) * (2 * cov + 9e-4) / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4)))
    assert ssim(found, original).item() == pytest.approx(np.mean(scores), abs=1e-12)


def test_one_pixel_images_compare_brightness_only() -> None:
    found, original = torch.full((1, 1, 1, 1), 0.5).double(), torch.full((1, 1, 1, 1), 0.25).double()
    expected = (2 * 0.5 * 0.25 + 1e-4) / (0.25 + 0.0625 + 1e-4)
    for sample in (False, True):
        assert ssim(found, original, sample_covariance=sample).item() == pytest.approx(expected)


def test_identity_and_symmetry() -> None:
    found, original = pair(4, 5, 1, 24, 24)
    assert ssim(original, original).tolist() == pytest.approx([1.0] * 5)
    torch.testing.assert_close(ssim(found, original), ssim(original, found))
    assert ssim(found, original).max() < 1.0


def test_more_noise_is_less_similar() -> None:
    _, original = pair(5, 1, 1, 32, 32)
    noise = torch.randn(32, 32, generator=torch.Generator().manual_seed(6))
    found = original + torch.tensor([0.0, 0.02, 0.1, 0.5]).reshape(4, 1, 1, 1) * noise
    scores = ssim(found, original.expand(4, -1, -1, -1)).tolist()
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == pytest.approx(1.0)
    assert scores[-1] < 0.3


def test_a_negative_of_a_picture_is_anti_correlated() -> None:
    _, original = pair(7, 1, 1, 32, 32)
    assert ssim(1.0 - original, original).item() < 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("window", ["gaussian", "uniform"])
@pytest.mark.parametrize("channels", [1, 3])
def test_pairs_are_the_single_scores_of_every_pair(dtype, window, channels) -> None:
    found, _ = pair(8, 5, channels, 16, 19)
    _, original = pair(9, 7, channels, 16, 19)
    original[3] = found[2]
    pairs = ssim_pairs(found, original, window=window, dtype=dtype, sample_covariance=True)
    assert pairs.shape == (5, 7)
    for i in range(5):
        one = found[i : i + 1].expand(7, -1, -1, -1)
        single = ssim(one, original, window=window, sample_covariance=True)
        torch.testing.assert_close(pairs[i].double(), single, atol=1e-5, rtol=0.0)


def test_pairs_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    found, original = pair(10, 6, 1, 12, 12)
    whole = ssim_pairs(found, original, dtype=torch.float64)
    for pixels in (1, 2 * 144, 5 * 144, 13 * 144):
        monkeypatch.setattr("fedleak.metrics.structure._CHUNK_CPU", pixels)
        torch.testing.assert_close(ssim_pairs(found, original, dtype=torch.float64), whole)
        torch.testing.assert_close(ssim(found, original), whole.diagonal())


def test_flat_white_backgrounds_keep_their_digits_in_float32() -> None:
    """Handwriting on white: windows without variance are where E[x^2] - E[x]^2 would lose them."""
    rng = torch.Generator().manual_seed(11)
    original = 1.0 - 0.05 * (torch.rand(8, 1, 28, 28, generator=rng) > 0.99).float()
    found = 0.9 * original + 1e-3 * torch.randn(original.shape, generator=rng)
    torch.testing.assert_close(
        ssim_pairs(found, original).diagonal().double(), ssim(found, original), atol=2e-6, rtol=0.0
    )


def test_a_non_finite_reconstruction_scores_as_nothing_found() -> None:
    found, original = pair(12, 3, 1, 16, 16)
    clean = ssim(found, original)
    found[1, 0, 3, 3] = torch.inf
    assert ssim(found, original)[1] == METRICS["ssim"].nothing == 0.0
    assert torch.equal(ssim(found, original)[[0, 2]], clean[[0, 2]])
    assert torch.isfinite(ssim_pairs(found, original)).all()
    assert ssim_pairs(found, original)[1].tolist() == [0.0] * 3


def test_wrong_shapes_and_windows_are_errors() -> None:
    with pytest.raises(ShapeError):
        ssim(torch.zeros(2, 1, 16, 16), torch.zeros(1, 1, 16, 16))
    with pytest.raises(ShapeError):
        ssim_pairs(torch.zeros(2, 1, 16, 16), torch.zeros(2, 3, 16, 16))
    with pytest.raises(RefusedError, match="gaussian, uniform"):
        ssim(torch.zeros(1, 1, 16, 16), torch.zeros(1, 1, 16, 16), window="square")  # type: ignore[arg-type]


def test_no_images_give_no_scores() -> None:
    nobody, one = torch.zeros(0, 1, 16, 16), torch.zeros(1, 1, 16, 16)
    assert ssim(nobody, nobody).shape == (0,)
    assert ssim_pairs(nobody, one).shape == (0, 1)
