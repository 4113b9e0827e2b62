"""Folders of pictures: folder/class/picture.png. Classes are numbered in the order of their names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedleak.data.arrays import as_images
from fedleak.data.dataset import Dataset
from fedleak.data.files import Request, damaged, shown
from fedleak.errors import DataError

__all__ = ["EXTENSIONS", "open_picture", "read", "read_folder"]

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".pgm")
FORMATS = ("PNG", "JPEG", "BMP", "PPM")
"""Pillow tries these decoders and no other, whatever the file contains. PGM is one of its PPM formats."""

UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""What Pillow raises on a damaged picture (an unidentified one is an OSError, a broken PNG chunk a SyntaxError)."""

Pixels = npt.NDArray[np.uint8]


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
        pictures = sorted(file for file in kind.iterdir() if _is_picture(file))
        if not pictures:
            raise DataError(
                f"{shown(kind)}: no pictures in it ({', '.join(EXTENSIONS)}); add some or remove the folder"
            )
        files += pictures
        labels += [label] * len(pictures)
    images = [open_picture(file) for file in files]
    x = np.stack([np.asarray(image) for image in _alike(files, images, size)])
    data = as_images(folder, x, np.asarray(labels))
    return Dataset(name, data, None, len(kinds), source)


def _is_picture(file: Path) -> bool:
    return file.suffix.lower() in EXTENSIONS and not file.name.startswith(".") and file.is_file()


def open_picture(file: Path) -> Image.Image:
    """A picture in 8 bits: grey stays grey, everything else (palettes, transparency, CMYK) becomes RGB."""
    try:
        with Image.open(file, formats=FORMATS) as image:
            if image.mode.startswith(("I", "F")):
                raise damaged(file, "8 bits a channel", f"mode {image.mode}")
            return image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")
    except UNREADABLE as error:
        # Pillow's message may hold the whole path; the error's kind is enough beside the file's name.
        raise damaged(file, "a whole PNG, JPEG, BMP or PGM picture", type(error).__name__) from error


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
