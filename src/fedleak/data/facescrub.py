"""FaceScrub: face crops in a folder per actor or actress, as the published list downloads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedleak.data.arrays import as_images
from fedleak.data.dataset import Dataset
from fedleak.data.files import Request
from fedleak.data.pictures import most_pictured, pictures_in, read_pictures, unpacked

__all__ = ["FOLDERS", "read"]

FOLDERS = ("facescrub", "FaceScrub")
GROUPS = ("actors", "actresses")
FACES = "faces"
SIZE = 64


def read(request: Request) -> Dataset | None:
    for folder in unpacked(request.root, FOLDERS):
        people: dict[str, list[Path]] = {}
        for place in _places(folder):
            for entry in sorted(place.iterdir()):
                if entry.is_dir() and not entry.name.startswith(".") and (files := pictures_in(entry)):
                    people.setdefault(entry.name, []).extend(files)
        if not people:
            continue
        counts = {name: len(files) for name, files in people.items()}
        chosen = most_pictured(counts, request.people, None, "facescrub")
        files = [file for name in chosen for file in people[name]]
        labels = np.repeat(np.arange(len(chosen)), [counts[name] for name in chosen])
        faces = as_images(folder, read_pictures(files, request.size or SIZE), labels)
        return Dataset("facescrub", faces, None, len(chosen), f"FaceScrub, the folder {folder.name}")
    return None


def _places(folder: Path) -> list[Path]:
    """The folders that hold a folder per person: the face crops of both groups, or this folder itself."""
    groups = [folder / group for group in GROUPS if (folder / group).is_dir()]
    return [group / FACES if (group / FACES).is_dir() else group for group in groups] or [folder]
