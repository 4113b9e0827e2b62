"""LFW, LAG and FaceScrub on folders written in their published layouts, and the memory of decoded pictures."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedleak.data import DataSpec, Request, load, pictures, read, read_dataset
from fedleak.errors import DataError, RefusedError
from fedleak.seeding import Seeds


def save(file: Path, value: int, side: int = 64, mode: str = "RGB") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (side, side), value if mode == "L" else (value, value, value)).save(file)


def levels(inputs: torch.Tensor) -> list[int]:
    return inputs[:, 0, 0, 0].tolist()


@pytest.fixture
def lfw(tmp_path: Path) -> Path:
    """Four people with 3, 1, 2 and 2 photos; every photo is its own grey level (png: jpeg would change it)."""
    for person, number, value in [
        ("Ada_A", 1, 10),
        ("Ada_A", 2, 11),
        ("Ada_A", 3, 12),
        ("Bea_B", 1, 20),
        ("Cy_C", 1, 30),
        ("Cy_C", 2, 31),
        ("Di_D", 1, 40),
        ("Di_D", 2, 41),
    ]:
        save(tmp_path / "lfw" / person / f"{person}_{number:04d}.png", value)
    return tmp_path


def test_lfw_people_are_numbered_by_name(lfw: Path) -> None:
    data = read_dataset("lfw", Request(lfw))
    assert levels(data.train.inputs) == [10, 11, 12, 20, 30, 31, 40, 41]
    assert data.train.labels.tolist() == [0, 0, 0, 1, 2, 2, 3, 3]
    assert (data.classes, data.test, data.train.domains) == (4, None, None)
    assert tuple(data.train.inputs.shape[1:]) == (3, 64, 64)


def test_the_people_with_most_photos_and_of_equals_the_first_by_name(lfw: Path) -> None:
    assert levels(read_dataset("lfw", Request(lfw, people=2)).train.inputs) == [10, 11, 12, 30, 31]
    assert read_dataset("lfw", Request(lfw, people=2)).train.labels.tolist() == [0, 0, 0, 1, 1]
    with pytest.raises(RefusedError, match=r"data\.people=5: the folder of lfw holds 4 people"):
        read_dataset("lfw", Request(lfw, people=5))


@pytest.mark.parametrize("inner", ["lfw", "lfw-deepfunneled"])
def test_an_archive_may_have_been_unpacked_into_a_folder_of_its_own_name(lfw: Path, inner: str) -> None:
    plain = read_dataset("lfw", Request(lfw))
    (lfw / "lfw").rename(lfw / inner)
    (lfw / "nested" / "lfw").mkdir(parents=True)
    (lfw / inner).rename(lfw / "nested" / "lfw" / inner)
    found = read_dataset("lfw", Request(lfw / "nested"))
    assert torch.equal(found.train.inputs, plain.train.inputs)
    assert torch.equal(found.train.labels, plain.train.labels)


def test_of_a_photo_of_the_published_size_the_middle_is_taken(tmp_path: Path) -> None:
    photo = np.zeros((250, 250, 3), dtype=np.uint8)
    photo[61:189, 61:189] = np.random.default_rng(0).integers(0, 256, (128, 128, 3))
    folder = tmp_path / "lfw-deepfunneled" / "Ada_A"
    folder.mkdir(parents=True)
    Image.fromarray(photo).save(folder / "Ada_A_0001.png")
    found = read_dataset("lfw", Request(tmp_path, size=128)).train.inputs[0]
    assert np.array_equal(found.permute(1, 2, 0).numpy(), photo[61:189, 61:189])
    halved = Image.fromarray(photo[61:189, 61:189]).resize((64, 64), Image.Resampling.BILINEAR)
    assert np.array_equal(read_dataset("lfw", Request(tmp_path)).train.inputs[0].permute(1, 2, 0), np.asarray(halved))


def test_a_grey_photo_among_colour_ones_gets_three_channels(lfw: Path) -> None:
    save(lfw / "lfw" / "Eve_E" / "Eve_E_0001.png", 50, mode="L")
    assert read_dataset("lfw", Request(lfw)).train.inputs[-1, :, 0, 0].tolist() == [50, 50, 50]


@pytest.fixture
def lag(tmp_path: Path) -> Path:
    for person, adult, young in [("Ann", [10, 11], [110]), ("Bob", [20], [120, 121]), ("Child only", [], [130])]:
        for at, value in enumerate(adult):
            save(tmp_path / "LAGdataset_200" / person / f"{at}.png", value, side=80)
        for at, value in enumerate(young):
            save(tmp_path / "LAGdataset_200" / person / "y" / f"{at}.png", value, side=70)
    return tmp_path


def test_lag_young_faces_are_the_other_domain(lag: Path) -> None:
    data = read_dataset("lag", Request(lag))
    assert levels(data.train.inputs) == [10, 11, 110, 20, 120, 121]
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.train.domains is not None
    assert data.train.domains.tolist() == [0, 0, 1, 0, 1, 1]
    assert data.classes == 2


def test_domains_enter_the_digest(lag: Path) -> None:
    data = read_dataset("lag", Request(lag))
    plain = type(data)(data.name, type(data.train)(data.train.inputs, data.train.labels), None, 2, data.source)
    assert data.digest != plain.digest


@pytest.mark.parametrize("groups", [("actors/faces", "actresses/faces"), ("actors", "actresses"), ("", "")])
def test_facescrub_actors_and_actresses_in_one_order(tmp_path: Path, groups: tuple[str, str]) -> None:
    men, women = (tmp_path / "facescrub" / group for group in groups)
    save(men / "Zed Z" / "Zed Z_1.png", 30, side=40)
    save(women / "Amy A" / "Amy A_1.png", 10, side=90)
    save(women / "Amy A" / "Amy A_2.png", 11)
    save(men / "Max M" / "Max M_1.png", 20)
    data = read_dataset("facescrub", Request(tmp_path))
    assert levels(data.train.inputs) == [10, 11, 20, 30]
    assert data.train.labels.tolist() == [0, 0, 1, 2]
    assert levels(read_dataset("facescrub", Request(tmp_path, people=1)).train.inputs) == [10, 11]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lfw", "NAME/NAME_0001.jpg"),
        ("lag", "PERSON/y/*.png young ones"),
        ("facescrub", "actresses/faces/NAME/*.jpeg"),
        ("femnist", "user_data"),
        ("svhn", "train_32x32.mat and test_32x32.mat"),
        ("tiny_imagenet", "train/WNID/images/*.JPEG"),
    ],
)
@pytest.mark.parametrize("empty", [True, False])
def test_what_is_missing_is_said_with_its_layout(tmp_path: Path, name: str, words: str, empty: bool) -> None:
    if empty:  # a folder of the right name with nothing in it is no data set either
        (tmp_path / name / "somebody").mkdir(parents=True)
    with pytest.raises(DataError) as caught:
        read_dataset(name, Request(tmp_path))
    assert words in str(caught.value)
    assert f"data set {name!r} not found" in str(caught.value)


def test_a_damaged_photo_is_named(lfw: Path) -> None:
    (lfw / "lfw" / "Cy_C" / "Cy_C_0002.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"Cy_C/Cy_C_0002\.png: expected a whole PNG"):
        read_dataset("lfw", Request(lfw))


def test_no_photo_is_decoded_twice_until_it_changes(lfw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    decode = pictures.open_picture

    def counted(file: Path) -> Image.Image:
        opened.append(file.name)
        return decode(file)

    monkeypatch.setattr(pictures, "open_picture", counted)
    first = read_dataset("lfw", Request(lfw)).digest
    assert len(opened) == 8
    assert read_dataset("lfw", Request(lfw)).digest == first
    assert len(opened) == 8
    changed = lfw / "lfw" / "Bea_B" / "Bea_B_0001.png"
    save(changed, 21)
    os.utime(changed, ns=(1, 1))
    assert read_dataset("lfw", Request(lfw)).digest != first
    assert len(opened) == 16


def test_what_one_run_does_with_its_faces_does_not_reach_the_next(lfw: Path) -> None:
    spec = DataSpec(name="lfw", clients=1)
    before = read(spec, lfw).digest
    load(spec, lfw, Seeds(0)).clients["client-0"].inputs.zero_()
    assert read(spec, lfw).digest == before
