"""LPIPS: its arithmetic by numpy on small weights, and on the real weights against the lpips package's numbers."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from fedleak.errors import ShapeError
from fedleak.metrics import METRICS, NotAvailable, load_lpips, lpips
from fedleak.metrics.perceptual import LPIPS_FILE, Lpips

LAYERS = [(0, 11, 4, 2), (3, 5, 1, 2), (6, 3, 1, 1), (8, 3, 1, 1), (10, 3, 1, 1)]


def small_weights(seed: int = 1) -> dict[str, np.ndarray]:
    """The published layout with two to four channels a layer."""
    rng = np.random.default_rng(seed)
    arrays, channels = {}, 3
    for number, ((place, kernel, _, _), wide) in enumerate(zip(LAYERS, (2, 3, 4, 3, 2), strict=True)):
        shape = (wide, channels, kernel, kernel)
        arrays[f"features.{place}.weight"] = rng.normal(0, 1 / np.sqrt(channels) / kernel, shape).astype(np.float32)
        arrays[f"features.{place}.bias"] = rng.normal(0, 0.1, wide).astype(np.float32)
        arrays[f"lin{number}.weight"] = rng.random((1, wide, 1, 1)).astype(np.float32)
        channels = wide
    return arrays


def folder(root: Path, arrays: dict[str, np.ndarray]) -> Path:
    (root / LPIPS_FILE).parent.mkdir(parents=True)
    np.savez(root / LPIPS_FILE, **arrays)
    return root


def by_numpy(arrays: dict[str, np.ndarray], found: np.ndarray, original: np.ndarray) -> float:
    """Zhang et al. 2018, eq. 1, with loops. Pixels (3, H, W) in [0, 1]."""

    def convolve(x, kernel, bias, stride, padding):
        x = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
        side = kernel.shape[-1]
        rows, columns = ((n - side) // stride + 1 for n in x.shape[1:])
        out = np.empty((len(kernel), rows, columns))
        for i in range(rows):
            for j in range(columns):
                patch = x[:, i * stride : i * stride + side, j * stride : j * stride + side]
                out[:, i, j] = (kernel * patch).sum(axis=(1, 2, 3)) + bias
        return out

    def pool(x):
        rows, columns = ((n - 3) // 2 + 1 for n in x.shape[1:])
        return np.array(
            [[x[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max(axis=(1, 2)) for j in range(columns)] for i in range(rows)]
        ).transpose(2, 0, 1)

    shift, scale = np.array([-0.030, -0.088, -0.188]), np.array([0.458, 0.448, 0.450])
    maps = [(2 * x - 1 - shift[:, None, None]) / scale[:, None, None] for x in (found, original)]
    total = 0.0
    for number, (place, _, stride, padding) in enumerate(LAYERS):
        if place in (3, 6):
            maps = [pool(x) for x in maps]
        kernel, bias = arrays[f"features.{place}.weight"], arrays[f"features.{place}.bias"]
        maps = [np.maximum(convolve(x, kernel, bias, stride, padding), 0.0) for x in maps]
        unit = [x / (np.sqrt((x**2).sum(axis=0, keepdims=True)) + 1e-10) for x in maps]
        head = arrays[f"lin{number}.weight"].reshape(-1, 1, 1)
        total += (head * (unit[0] - unit[1]) ** 2).sum(axis=0).mean()
    return float(total)


def pictures(seed: int, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_arithmetic_by_numpy() -> None:
    arrays = small_weights()
    found, original = pictures(1, 2, 3, 64, 70), pictures(2, 2, 3, 64, 70)
    ours = Lpips.from_arrays(arrays)(found, original)
    theirs = [by_numpy(arrays, f.numpy(), o.numpy()) for f, o in zip(found, original, strict=True)]
    assert ours.dtype == torch.float64
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-4)
    assert min(theirs) > 1e-3


def test_grey_is_repeated_to_three_channels() -> None:
    network = Lpips.from_arrays(small_weights())
    found, original = pictures(3, 2, 1, 64, 64), pictures(4, 2, 1, 64, 64)
    torch.testing.assert_close(network(found, original), network(found.repeat(1, 3, 1, 1), original.repeat(1, 3, 1, 1)))


@pytest.mark.parametrize(("small", "large"), [((32, 32), (64, 64)), ((28, 42), (64, 96)), ((8, 8), (64, 64))])
def test_small_images_are_upsampled_until_the_shorter_side_is_64(small, large) -> None:
    network = Lpips.from_arrays(small_weights())
    found, original = pictures(5, 2, 3, *small), pictures(6, 2, 3, *small)
    bigger = [
        torch.nn.functional.interpolate(x, size=large, mode="bilinear", align_corners=False) for x in (found, original)
    ]
    torch.testing.assert_close(network(found, original), network(*bigger))


def test_what_lies_outside_the_picture_is_clipped() -> None:
    network = Lpips.from_arrays(small_weights())
    original = pictures(7, 1, 3, 64, 64)
    found = pictures(8, 1, 3, 64, 64) * 3 - 1
    torch.testing.assert_close(network(found, original), network(found.clamp(0, 1), original))
    assert torch.isfinite(network(found * 1e30, original)).all()


def test_a_non_finite_reconstruction_scores_as_nothing_found() -> None:
    network = Lpips.from_arrays(small_weights())
    found, original = pictures(9, 3, 1, 32, 32), pictures(10, 3, 1, 32, 32)
    clean = network(found, original)
    found[1, 0, 0, 0] = torch.nan
    scores = network(found, original)
    assert scores[1] == METRICS["lpips"].nothing == 1.0
    torch.testing.assert_close(scores[[0, 2]], clean[[0, 2]])


def test_chunks_and_no_images() -> None:
    network = Lpips.from_arrays(small_weights())
    found, original = pictures(11, 70, 1, 16, 16), pictures(12, 70, 1, 16, 16)
    torch.testing.assert_close(network(found, original)[65:], network(found[65:], original[65:]))
    assert network(found[:0], original[:0]).shape == (0,)


def test_from_a_data_folder(tmp_path: Path) -> None:
    root = folder(tmp_path, small_weights())
    found, original = pictures(13, 2, 3, 64, 64), pictures(14, 2, 3, 64, 64)
    scores = lpips(found, original, root)
    assert isinstance(scores, torch.Tensor)
    torch.testing.assert_close(scores, Lpips.from_arrays(small_weights())(found, original))
    assert load_lpips(root) is load_lpips(root)


def test_without_weights_the_metric_is_not_available_and_says_why(tmp_path: Path) -> None:
    picture = pictures(15, 1, 3, 64, 64)
    for root in (None, tmp_path):
        missing = lpips(picture, picture, root)
        assert isinstance(missing, NotAvailable)
        assert LPIPS_FILE in missing.reason
        assert str(missing).startswith("not available, because ")
        assert str(tmp_path) not in missing.reason  # rows hold no paths
    # Weights that arrive later are found.
    assert isinstance(lpips(picture, picture, folder(tmp_path, small_weights())), torch.Tensor)


@pytest.mark.parametrize("damage", ["no archive", "truncated", "missing array", "wrong shape", "pickled"])
def test_damaged_weights_are_not_available(tmp_path: Path, damage: str) -> None:
    arrays = small_weights()
    if damage == "missing array":
        del arrays["lin3.weight"]
    if damage == "wrong shape":
        arrays["features.6.weight"] = arrays["features.6.weight"][:, :2]
    if damage == "pickled":
        arrays["features.0.bias"] = np.array([{"an": "object"}], dtype=object)
    path = folder(tmp_path, arrays) / LPIPS_FILE
    if damage == "no archive":
        path.write_bytes(b"not an archive")
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-200])
    missing = load_lpips(tmp_path)
    assert isinstance(missing, NotAvailable)
    assert "cannot be used" in missing.reason


def test_neither_grey_nor_colour_is_not_available(tmp_path: Path) -> None:
    picture = pictures(16, 1, 4, 64, 64)
    missing = lpips(picture, picture, folder(tmp_path, small_weights()))
    assert isinstance(missing, NotAvailable)
    assert "4 channels" in missing.reason


def test_shapes_are_compared_first() -> None:
    with pytest.raises(ShapeError):
        lpips(torch.zeros(2, 3, 64, 64), torch.zeros(1, 3, 64, 64), None)


# --- with the published weights --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published() -> Lpips:
    root = os.environ.get("FEDLEAK_DATA")
    if not root:
        pytest.skip(f"FEDLEAK_DATA is not set: no {LPIPS_FILE}")
    network = load_lpips(Path(root))
    if isinstance(network, NotAvailable):
        pytest.skip(str(network))
    return network


def wave(phase: float) -> torch.Tensor:
    rows, columns = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    colours = [0.5 + 0.5 * torch.sin(0.21 * rows + 0.13 * columns * k + phase) for k in (1, 2, 3)]
    return torch.stack(colours)[None]


def test_published_weights_give_the_numbers_of_the_lpips_package(published: Lpips) -> None:
    """Numbers of lpips 0.1.4, LPIPS(net="alex", version="0.1"), normalize=True, on the same pictures."""
    theirs = {0.1: 0.00077437, 0.5: 0.01636034, 1.5: 0.07336417}
    for phase, expected in theirs.items():
        assert published(wave(phase), wave(0.0)).item() == pytest.approx(expected, rel=1e-3)


def test_published_weights_identical_is_zero_and_noise_is_monotone(published: Lpips) -> None:
    original = wave(0.0).expand(5, -1, -1, -1)
    noise = torch.randn(original[0].shape, generator=torch.Generator().manual_seed(17))
    amounts = torch.tensor([0.0, 0.02, 0.05, 0.1, 0.3]).reshape(5, 1, 1, 1)
    scores = published(original + amounts * noise, original).tolist()
    assert scores[0] == 0.0
    assert all(a < b for a, b in pairwise(scores))
