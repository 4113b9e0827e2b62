"""The two domains that fedleak makes: a mask over the lower face and a box blur."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import uniform_filter

from fedleak.data.domains import MASK_DRAWS, blurred, masked
from fedleak.errors import RefusedError


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


# --- blur ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [1, 2, 3, 5, 10, 20])
def test_the_blur_is_scipys_uniform_filter(side: int) -> None:
    images = noise(2, 3, 24, 20)
    expected = uniform_filter(images.double().numpy(), size=(1, 1, side, side), mode="mirror")
    # scipy's running sums round differently in the last digits: halves, which rounding would split, are set apart.
    assert np.abs(blurred(images, side).numpy() - expected).max() <= 0.5 + 1e-9


def test_a_blur_of_one_by_hand() -> None:
    image = torch.tensor([[0, 90, 9], [0, 0, 0], [9, 0, 0]], dtype=torch.uint8).reshape(1, 1, 3, 3)
    # the middle is the mean of all nine, 108 / 9; the corner mirrors: rows 1,0,1 and columns 1,0,1 -> 2 * 90 / 9
    assert blurred(image, 3)[0, 0, 1, 1] == 12
    assert blurred(image, 3)[0, 0, 0, 0] == 20
    assert torch.equal(blurred(image, 1), image)


def test_a_box_larger_than_the_image_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"public\.blur=9: the images are 8x16"):
        blurred(noise(1, 1, 8, 16), 9)


@given(level=st.integers(0, 255), side=st.integers(1, 8))
def test_a_flat_image_stays_flat(level: int, side: int) -> None:
    flat = torch.full((1, 1, 8, 9), level, dtype=torch.uint8)
    assert torch.equal(blurred(flat, side), flat)


# --- mask ---------------------------------------------------------------------------------------------------------

MIDDLE = torch.full((1, MASK_DRAWS), 0.5)


@pytest.mark.parametrize(("channels", "size"), [(1, 32), (3, 64), (1, 112), (3, 32)])
def test_a_mask_hides_nose_and_mouth_and_leaves_eyes_and_forehead(channels: int, size: int) -> None:
    one, two = noise(1, channels, size, size), noise(1, channels, size, size, seed=1)
    worn = masked(one, MIDDLE)
    assert worn.dtype == torch.uint8
    assert worn.shape == one.shape
    assert torch.equal(worn[:, :, : int(0.48 * size)], one[:, :, : int(0.48 * size)])
    mouth = slice(int(0.66 * size), int(0.86 * size)), slice(int(0.3 * size), int(0.7 * size))
    # under the cloth nothing of the face is left: two faces look the same there
    assert torch.equal(worn[:, :, mouth[0], mouth[1]], masked(two, MIDDLE)[:, :, mouth[0], mouth[1]])
    corner = slice(int(0.9 * size), None), slice(0, int(0.08 * size))
    assert torch.equal(worn[:, :, corner[0], corner[1]], one[:, :, corner[0], corner[1]])


def test_colour_masks_are_bluish_and_their_grey_is_their_luma() -> None:
    black = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    red, green, blue = masked(black, MIDDLE)[0, :, 44, 32].tolist()
    assert blue > green > red > 120
    grey = int(masked(black[:, :1], MIDDLE)[0, 0, 44, 32])
    assert abs(grey - (0.299 * red + 0.587 * green + 0.114 * blue)) <= 1


def test_masks_differ_a_little_from_image_to_image() -> None:
    draws = torch.rand((8, MASK_DRAWS), generator=torch.Generator().manual_seed(0))
    faces = torch.zeros(8, 1, 64, 64, dtype=torch.uint8)
    worn = masked(faces, draws)
    assert len({image.numpy().tobytes() for image in worn}) == 8
    covered = (worn > 0).flatten(1).double().mean(1)
    assert covered.min() > 0.15
    assert covered.max() < 0.35
    # an image's mask depends on its own draws alone
    assert torch.equal(masked(faces[3:4], draws[3:4]), worn[3:4])
