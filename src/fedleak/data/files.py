"""What the readers share: where to look, and how to say that a file is not what it should be."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fedleak.errors import DataError

__all__ = ["Request", "damaged", "data_root", "locate", "shown"]

VARIABLE = "FEDLEAK_DATA"


@dataclass(frozen=True)
class Request:
    """What a reader is asked for: the data folder, and what the specification says about this data set."""

    root: Path
    path: str | None = None
    subset: str | None = None
    size: int | None = None
    """Only for image folders, whose pictures may differ in size and must be made equal while they are read."""
    people: int | None = None
    """Only those with most images, where labels are people."""
    classes: tuple[int, ...] | None = None
    """The labels that are wanted: a reader may leave out what comes after the last of them."""


def data_root(option: str | os.PathLike[str] | None = None) -> Path:
    """The data folder: --data where it is given, else FEDLEAK_DATA, else ./data.

    A folder asked for by --data must be there. The other two may be missing: ORL needs no data folder.
    """
    if option is not None and str(option):
        folder = Path(option)
        if not folder.is_dir():
            raise DataError(f"--data {folder}: no such folder; give the folder that holds the data sets")
        return folder
    return Path(os.environ.get(VARIABLE) or "data")


def shown(file: Path) -> str:
    """A file's name with its folder, for a message: enough to find it, without the machine's own path."""
    return f"{file.parent.name}/{file.name}" if file.parent.name else file.name


def damaged(file: Path, expected: str, found: str) -> DataError:
    """The error for a file that is there but is not what its layout promises."""
    return DataError(f"{shown(file)}: expected {expected}, found {found}; get the file again, or remove it")


def locate(folders: list[Path], needed: dict[str, list[str]]) -> dict[str, Path] | None:
    """The first folder that holds one file of every list in `needed`; None where no folder holds any of them.

    A folder with some of the files but not all is an error that names the missing ones: a half-finished download
    must not look like a data set that was never there.
    """
    incomplete: list[str] = []
    for folder in folders:
        found = {
            role: next(path for path in (folder / name for name in names) if path.is_file())
            for role, names in needed.items()
            if any((folder / name).is_file() for name in names)
        }
        if len(found) == len(needed):
            return found
        if found:
            there = ", ".join(path.name for path in found.values())
            lost = ", ".join(names[0] for role, names in needed.items() if role not in found)
            incomplete.append(f"{folder} has {there} but not {lost}")
    if incomplete:
        raise DataError(f"incomplete data set: {'; '.join(incomplete)}; get the missing files too")
    return None
