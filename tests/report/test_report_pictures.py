"""Pictures show what is in the artifacts, in the order of clients."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import save

from fedleak.audit.rows import Row
from fedleak.audit.store import RunFolder
from fedleak.report.blobs import Blobs
from fedleak.report.pictures import data_uri, pairs_of, sheet_of, strip_of
from fedleak.report.tables import summary

Make = Callable[..., Row]


def decoded(uri: str) -> NDArray[Any]:
    head, _, body = uri.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(body))))


def test_a_data_uri_holds_the_pixels_exactly() -> None:
    grey = np.arange(64, dtype=np.float64).reshape(1, 8, 8) / 255
    assert (decoded(data_uri(grey)) == np.arange(64).reshape(8, 8)).all()
    colour = np.random.default_rng(0).integers(0, 256, (3, 5, 7)).astype(np.float64) / 255
    assert (decoded(data_uri(colour)) == np.rint(colour * 255).transpose(1, 2, 0)).all()


def test_pixels_out_of_range_are_clipped_and_nan_is_grey() -> None:
    image = np.array([[[-3.0, 7.0], [np.nan, np.inf]]])
    assert decoded(data_uri(image)).tolist() == [[0, 255], [128, 255]]


def test_two_channels_are_shown_as_their_mean() -> None:
    assert decoded(data_uri(np.stack([np.zeros((2, 2)), np.ones((2, 2))]))).tolist() == [[127, 127], [127, 127]]


def test_large_images_are_reduced_and_keep_their_shape() -> None:
    assert decoded(data_uri(np.zeros((1, 320, 640)))).shape == (80, 160)


def victim(folder: RunFolder, make_row: Make, client: str, images: int, metric: str = "psnr", **where: Any) -> Row:
    level = np.linspace(0, 1, images)[:, None, None, None] * np.ones((images, 1, 4, 4))
    blob = save({"original": level.astype(np.float32), "reconstruction": (1 - level).astype(np.float32)})
    scores = {metric: [1.0] * images} if metric == "attack_accuracy" else {metric: [10.0 + at for at in range(images)]}
    return make_row({"client": client, **where}, scores, artifacts={"images": folder.put(blob)})


def test_every_client_has_a_picture_before_any_has_two(tmp_path: Path, make_row: Make) -> None:
    folder = RunFolder(tmp_path)
    (found,) = summary([victim(folder, make_row, client, 3) for client in ("b", "a", "c")])
    pairs = pairs_of(found, Blobs(folder), most=4)
    assert [pair.client for pair in pairs] == ["a, image 1", "b, image 1", "c, image 1", "a, image 2"]
    assert pairs[0].closeness == "10.0 dB"
    assert pairs[0].hit is None  # nobody judged it


def test_arms_share_a_column_only_where_they_hold_the_same_image(tmp_path: Path, make_row: Make) -> None:
    folder = RunFolder(tmp_path)
    same = [victim(folder, make_row, "a", 1, defense=name) for name in ("none", "clip(norm=1)")]
    other = victim(folder, make_row, "z", 1, defense="round(decimals=2)")
    sheet = sheet_of(summary([*same, other]), Blobs(folder))
    assert sheet is not None
    assert [pair.client for pair in sheet.originals] == ["a", "z"]
    assert [[pair is not None for pair in line] for _, line in sheet.lines] == [
        [True, False],
        [True, False],
        [False, True],
    ]


@pytest.mark.parametrize(("metric", "columns"), [("attack_accuracy", 2), ("psnr", 4)])
def test_a_person_has_one_column_whatever_round_was_attacked(
    tmp_path: Path, make_row: Make, metric: str, columns: int
) -> None:
    """one_shot leaves one round, the other arms five. A client may train on another image in another round."""
    folder = RunFolder(tmp_path)
    arms = [
        victim(folder, make_row, "federation", 2, metric, defense=name, round=round_, attack="pli")
        for name, round_ in (("none", 5), ("one_shot", 1))
    ]
    sheet = sheet_of(summary(arms), Blobs(folder))
    assert sheet is not None
    assert len(sheet.originals) == columns


def test_the_strip_runs_from_the_start_to_the_end(faces_run: Path) -> None:
    folder = RunFolder(faces_run)
    found = [s for s in summary(folder.rows()) if s.where["attack"] == "dlm_plus"]
    strip = strip_of(found, Blobs(folder))
    assert strip is not None
    steps = [int(step) for step, _ in strip.frames]
    assert (steps[0], steps[-1], len(steps)) == (0, 200, 8)
    assert steps == sorted(steps)
    last, original = decoded(strip.frames[-1][1]).astype(float), decoded(strip.original).astype(float)
    assert np.abs(last - original).mean() < 5


def test_no_strip_without_a_recovered_victim(tmp_path: Path, make_row: Make) -> None:
    folder = RunFolder(tmp_path)
    assert strip_of(summary([victim(folder, make_row, "a", 1)]), Blobs(folder)) is None


def test_a_lost_blob_is_noted_and_skipped(tmp_path: Path, make_row: Make) -> None:
    folder = RunFolder(tmp_path)
    kept, lost = victim(folder, make_row, "a", 1), victim(folder, make_row, "b", 2)
    (tmp_path / "artifacts" / lost.artifacts["images"]).unlink()
    blobs = Blobs(folder)
    (found,) = summary([kept, lost])
    assert [pair.client for pair in pairs_of(found, blobs)] == ["a"]
    assert "missing" in blobs.problems[lost.artifacts["images"]]


@pytest.mark.parametrize(
    ("blob", "why"),
    [
        (b"not safetensors at all", "not safetensors"),
        (save({"original": np.zeros((1, 1, 2, 2), np.float32)}), "no original and reconstruction"),
        (
            save({"original": np.zeros((1, 1, 2, 2), np.float32), "reconstruction": np.zeros((1, 2, 2), np.float32)}),
            "do not fit",
        ),
    ],
)
def test_a_damaged_blob_is_noted(tmp_path: Path, make_row: Make, blob: bytes, why: str) -> None:
    folder = RunFolder(tmp_path)
    row = make_row({"client": "a"}, {"psnr": [1.0]}, artifacts={"images": folder.put(blob)})
    blobs = Blobs(folder)
    assert blobs.images(row) == {}
    assert why in blobs.problems[row.artifacts["images"]]


def test_a_trace_ends_where_it_stops_being_finite(tmp_path: Path, make_row: Make) -> None:
    folder = RunFolder(tmp_path)
    sha256 = folder.put_json({"steps": [0, 5, 10, 15], "objective": [3.0, 2.0, None, 1.0]})
    row = make_row({}, {}, artifacts={"trace": sha256})
    assert Blobs(folder).trace(row) == ([0, 5], [3.0, 2.0])
