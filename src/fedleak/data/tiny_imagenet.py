"""Tiny ImageNet: 64x64 colour pictures in train/WNID, classes numbered in the order of their WordNet ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedleak.data.arrays import as_images
from fedleak.data.dataset import Dataset, Images
from fedleak.data.files import Request, damaged
from fedleak.data.pictures import pictures_in, read_pictures
from fedleak.errors import DataError

__all__ = ["FOLDERS", "read"]

FOLDERS = ("tiny-imagenet-200", "tiny-imagenet-20", "tiny_imagenet")
ANNOTATIONS = "val_annotations.txt"


def read(request: Request) -> Dataset | None:
    """Where `classes` are asked for, only the classes up to the last of them are read: 200 take 1.2 GB."""
    for folder in (request.root / name for name in FOLDERS):
        if not (folder / "train").is_dir():
            continue
        kinds = sorted(e.name for e in (folder / "train").iterdir() if e.is_dir() and not e.name.startswith("."))
        if not kinds:
            continue
        kinds = kinds[: max(request.classes) + 1] if request.classes else kinds
        train = {kind: _pictures(folder / "train" / kind) for kind in kinds}
        empty = [kind for kind, files in train.items() if not files]
        if empty:
            raise DataError(f"{folder.name}: no pictures in train/{empty[0]}/images or train/{empty[0]}; get it again")
        test = _validation(folder / "val", kinds)
        return Dataset(
            "tiny_imagenet",
            _part(folder, train),
            _part(folder, test) if any(test.values()) else None,
            len(kinds),
            f"Tiny ImageNet, the folder {folder.name}",
        )
    return None


def _part(folder: Path, kinds: dict[str, list[Path]]) -> Images:
    labels = np.repeat(np.arange(len(kinds)), [len(files) for files in kinds.values()])
    pictures = read_pictures([file for files in kinds.values() for file in files])
    return as_images(folder, pictures, labels)


def _pictures(folder: Path) -> list[Path]:
    """Published: WNID/images/*.JPEG; sorted by others: WNID/*.JPEG."""
    inner = folder / "images"
    return pictures_in(inner if inner.is_dir() else folder) if folder.is_dir() else []


def _validation(folder: Path, kinds: list[str]) -> dict[str, list[Path]]:
    """The official validation part, which is the one with labels: val/WNID, or val/images with a list of labels."""
    notes = folder / ANNOTATIONS
    if not notes.is_file():
        return {kind: _pictures(folder / kind) for kind in kinds}
    found: dict[str, list[Path]] = {kind: [] for kind in kinds}
    try:
        rows = [line.split("\t") for line in notes.read_text(encoding="utf-8").splitlines() if line]
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(
            notes, "lines of picture, WordNet id and box, with tabs between them", type(error).__name__
        ) from error
    for row in rows:
        # A name with a folder in it would lead out of val/images.
        if len(row) < 2 or Path(row[0]).name != row[0]:
            raise damaged(notes, "lines of picture, WordNet id and box, with tabs between them", f"{row}")
        if row[1] in found:
            found[row[1]].append(folder / "images" / row[0])
    lost = [file for files in found.values() for file in files if not file.is_file()]
    if lost:
        raise DataError(f"incomplete data set: {ANNOTATIONS} names {lost[0].name}, which is not there; get it again")
    return found
