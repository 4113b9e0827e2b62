"""Files that are either wholly there or not there at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from fedleak.errors import RefusedError

__all__ = [
    "canonical",
    "digest",
    "disk_is_full",
    "keeping_in",
    "kept_in",
    "locked",
    "make_room_for",
    "one_at_a_time",
    "replace_file",
    "replace_folder",
]

_KEPT: ContextVar[Path | None] = ContextVar("kept", default=None)


def canonical(value: Any) -> bytes:
    """The one way fedleak writes JSON that is going to be hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def digest(value: Any) -> str:
    """sha256 of bytes, or of a value's canonical JSON."""
    return hashlib.sha256(value if isinstance(value, bytes) else canonical(value)).hexdigest()


def disk_is_full(problem: BaseException) -> bool:
    """Whether the machine could not store something, whoever asked."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    return isinstance(problem, OSError) and problem.errno in full


def replace_file(path: Path, content: bytes) -> None:
    """Write beside, flush to disk, rename over: a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp's 0600 would hide results from a colleague
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def make_room_for(path: Path, option: str) -> None:
    """Make the folder of a file that is written at the end of long work, and refuse now what cannot be written then."""
    problem = "it is a folder" if path.is_dir() else ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            problem = "its folder is not yours to write to"
    except OSError as error:
        problem = str(error.strerror)
    if problem:
        raise RefusedError(f"{option} {path}: cannot be written ({problem}); give the name of a new file")


@contextlib.contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """Fill a temporary folder; it becomes `path` by one rename if the block ends well and `path` is not there yet."""
    import shutil

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
    try:
        yield temporary
        os.chmod(temporary, 0o755)
        try:
            os.rename(temporary, path)
        except OSError:
            if not path.is_dir():
                raise  # not "somebody else was faster": a real failure
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one run writes to a folder at a time. The lock ends with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / ".lock").open("a")
    except OSError as problem:
        why = "it is a file" if folder.is_file() else problem.strerror
        raise RefusedError(f"out={folder}: cannot be written to ({why}); choose another folder with --out") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedError(
                f"out={folder}: another run is writing to this folder; wait for it or choose another with --out"
            ) from None
        yield


@contextlib.contextmanager
def one_at_a_time(file: Path) -> Iterator[None]:
    """Processes that want to make the same file wait for each other: the second finds what the first has made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with (file.parent / f".{file.name}.lock").open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def keeping_in(folder: Path) -> Iterator[None]:
    """Within the block, work may keep in `folder` what is dear to make and follows from what it was made of alone."""
    token = _KEPT.set(folder)
    try:
        yield
    finally:
        _KEPT.reset(token)


def kept_in() -> Path | None:
    """The folder of the innermost `keeping_in`; None where nobody offers one."""
    return _KEPT.get()
