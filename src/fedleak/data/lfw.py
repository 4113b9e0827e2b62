"""Labeled Faces in the Wild: NAME/NAME_0001.jpg, as published (250x250) or cut to the face already."""

from __future__ import annotations

import numpy as np
from PIL import Image

from fedleak.data.arrays import as_images
from fedleak.data.dataset import Dataset
from fedleak.data.files import Request
from fedleak.data.pictures import most_pictured, pictures_in, read_pictures, unpacked

__all__ = ["FOLDERS", "read"]

FOLDERS = ("lfw", "lfw-deepfunneled", "lfw_funneled", "LFW")
PEOPLE, SIZE = 1000, 64
"""pli.txt section 4.1: the 1000 people with most photos, 64x64."""
PUBLISHED, FACE = 250, 128
"""The published pictures show head and shoulders: the face is the square of 128 in the middle."""


def read(request: Request) -> Dataset | None:
    for folder in unpacked(request.root, FOLDERS):
        people = {
            entry.name: pictures_in(entry)
            for entry in sorted(folder.iterdir())
            if entry.is_dir() and not entry.name.startswith(".")
        }
        counts = {name: len(files) for name, files in people.items() if files}
        if not counts:
            continue
        chosen = most_pictured(counts, request.people, PEOPLE, "lfw")
        files = [file for name in chosen for file in people[name]]
        labels = np.repeat(np.arange(len(chosen)), [counts[name] for name in chosen])
        faces = read_pictures(files, request.size or SIZE, face_of)
        return Dataset("lfw", as_images(folder, faces, labels), None, len(chosen), f"LFW, the folder {folder.name}")
    return None


def face_of(image: Image.Image) -> Image.Image:
    """The face of a picture of the published size; any other is taken to be cut already."""
    if image.size != (PUBLISHED, PUBLISHED):
        return image
    start = (PUBLISHED - FACE) // 2
    return image.crop((start, start, start + FACE, start + FACE))
