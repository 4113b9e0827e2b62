"""Picture files to arrays: safe decoding, one size, and no file decoded twice in a process."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedleak.data.files import damaged
from fedleak.errors import RefusedError

__all__ = [
    "EXTENSIONS",
    "Pixels",
    "most_pictured",
    "open_picture",
    "pictures_in",
    "read_pictures",
    "remembered",
    "unpacked",
]

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".pgm")
FORMATS = ("PNG", "JPEG", "BMP", "PPM")
"""Pillow tries these decoders and no other, whatever the file contains. PGM is one of its PPM formats."""

UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""What Pillow raises on a damaged picture (an unidentified one is an OSError, a broken PNG chunk a SyntaxError)."""

KEPT = 4
"""Collections that a process remembers: a private and a public data set, each of a training and a test part."""

Pixels = npt.NDArray[np.uint8]
_kept: OrderedDict[str, Pixels] = OrderedDict()


def remembered(files: Sequence[Path], how: str, make: Callable[[], Pixels]) -> Pixels:
    """What `make` made of these files the last time, unless one of them has changed since. Not to be written to."""
    state = hashlib.sha256(how.encode())
    for file in files:
        about = file.stat()
        state.update(f"{file.absolute()}|{about.st_mtime_ns}|{about.st_size}\n".encode("utf-8", "surrogateescape"))
    key = state.hexdigest()
    if key not in _kept:
        _kept[key] = make()
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    return _kept[key]


def read_pictures(
    files: Sequence[Path], size: int | None = None, crop: Callable[[Image.Image], Image.Image] | None = None
) -> Pixels:
    """All pictures, cropped and then resized to size x size: (n, H, W) if all are grey, else (n, H, W, 3).

    Without `size` they must be alike already.
    """

    def make() -> Pixels:
        made = [_made(file, size, crop) for file in files]
        odd = next((at for at, image in enumerate(made) if image.shape[:2] != made[0].shape[:2]), None)
        if odd is not None:
            raise damaged(files[odd], f"a picture of {_extent(made[0])}, like the others", _extent(made[odd]))
        if any(image.ndim == 3 for image in made):
            # A grey picture among colour ones: three equal channels, as Pillow converts it.
            made = [image if image.ndim == 3 else np.repeat(image[:, :, None], 3, axis=2) for image in made]
        return np.stack(made)

    return remembered(files, f"pictures {size} {crop.__qualname__ if crop is not None else None}", make)


def _made(file: Path, size: int | None, crop: Callable[[Image.Image], Image.Image] | None) -> Pixels:
    image = open_picture(file)
    if crop is not None:
        image = crop(image)
    if size is not None and image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image)


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


def unpacked(root: Path, names: Sequence[str]) -> list[Path]:
    """The folders of these names, and those of these names inside them: an archive of one that was unpacked there."""
    outer = [root / name for name in names]
    return [folder for folder in (*outer, *(one / name for one in outer for name in names)) if folder.is_dir()]


def pictures_in(folder: Path) -> list[Path]:
    """The picture files of a folder, in the order of their names."""
    return sorted(
        file
        for file in folder.iterdir()
        if file.suffix.lower() in EXTENSIONS and not file.name.startswith(".") and file.is_file()
    )


def most_pictured(counts: Mapping[str, int], people: int | None, default: int | None, name: str) -> list[str]:
    """The people with most pictures (of equals the first by name), in the order of their names."""
    if people is not None and people > len(counts):
        raise RefusedError(
            f"data.people={people}: the folder of {name} holds {len(counts)} people; ask for at most that"
        )
    ranked = sorted(counts, key=lambda person: (-counts[person], person))
    return sorted(ranked[: people if people is not None else default])


def _extent(image: Pixels) -> str:
    return f"{image.shape[1]}x{image.shape[0]}"
