"""Folders of pictures: folder/class/picture.png. Classes are numbered in the order of their names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedleak.data.arrays import as_images
from fedleak.data.dataset import Dataset
from fedleak.data.files import Request, shown
from fedleak.data.pictures import EXTENSIONS, Pixels, open_picture, pictures_in, remembered
from fedleak.errors import DataError

__all__ = ["read", "read_folder"]


def read(request: Request) -> Dataset | None:
    """The folder at `path`. Where its pictures differ in size, they are resized as they are read, and need `size`."""
    folder = request.root / (request.path or "")
    if not folder.is_dir():
        return None
    return read_folder(folder, name="imagefolder", source=f"the image folder {folder.name}", size=request.size)


def read_folder(folder: Path, *, name: str, source: str, size: int | None = None) -> Dataset:
    kinds = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not kinds:
        raise DataError(
            f"{folder.name}: no class folders in it; put the pictures of each class in a folder of its own, "
            f"as in {folder.name}/CLASS/picture.png"
        )
    files, labels = [], []
    for label, kind in enumerate(kinds):
        pictures = pictures_in(kind)
        if not pictures:
            raise DataError(
                f"{shown(kind)}: no pictures in it ({', '.join(EXTENSIONS)}); add some or remove the folder"
            )
        files += pictures
        labels += [label] * len(pictures)

    def make() -> Pixels:
        images = [open_picture(file) for file in files]
        return np.stack([np.asarray(image) for image in _alike(files, images, size)])

    data = as_images(folder, remembered(files, f"folder {size}", make), np.asarray(labels))
    return Dataset(name, data, None, len(kinds), source)


def _alike(files: Sequence[Path], images: Sequence[Image.Image], size: int | None) -> list[Image.Image]:
    """All grey or all RGB, and all of one size."""
    mode = "L" if all(image.mode == "L" for image in images) else "RGB"
    if len({image.size for image in images}) > 1:
        if size is None:
            odd = next(at for at, image in enumerate(images) if image.size != images[0].size)
            raise DataError(
                f"{shown(files[odd])} is {_extent(images[odd])}, {shown(files[0])} is {_extent(images[0])}: "
                "pictures of different sizes need `size`, to which all of them are resized"
            )
        images = [image.resize((size, size), Image.Resampling.BILINEAR) for image in images]
    return [image.convert(mode) for image in images]


def _extent(image: Image.Image) -> str:
    return f"{image.width}x{image.height}"
