"""The Large Age-Gap faces: a folder per person with adult pictures, and in its folder y the young ones."""

from __future__ import annotations

import numpy as np

from fedleak.data.arrays import as_images
from fedleak.data.dataset import Dataset
from fedleak.data.files import Request
from fedleak.data.pictures import most_pictured, pictures_in, read_pictures, unpacked

__all__ = ["FOLDERS", "read"]

FOLDERS = ("lag", "LAG", "LAGdataset_100", "LAGdataset_200")
YOUNG = "y"
PEOPLE, SIZE = 1000, 64
"""pli.txt section 4.1: the 1000 people with most photos (of 1,010), 64x64."""


def read(request: Request) -> Dataset | None:
    for folder in unpacked(request.root, FOLDERS):
        adult, young = {}, {}
        for entry in sorted(folder.iterdir()):
            if entry.is_dir() and not entry.name.startswith("."):
                adult[entry.name] = pictures_in(entry)
                young[entry.name] = pictures_in(entry / YOUNG) if (entry / YOUNG).is_dir() else []
        # Somebody of one age only can be neither target nor pair; the published people have both.
        counts = {name: len(adult[name]) + len(young[name]) for name in adult if adult[name] and young[name]}
        if not counts:
            continue
        chosen = most_pictured(counts, request.people, PEOPLE, "lag")
        files = [file for name in chosen for file in (*adult[name], *young[name])]
        labels = np.repeat(np.arange(len(chosen)), [counts[name] for name in chosen])
        domains = np.concatenate([np.repeat([0, 1], [len(adult[name]), len(young[name])]) for name in chosen])
        faces = as_images(folder, read_pictures(files, request.size or SIZE), labels, domains=domains)
        return Dataset("lag", faces, None, len(chosen), f"LAG, the folder {folder.name}")
    return None
