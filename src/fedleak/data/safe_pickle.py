"""Read a pickle that holds numpy arrays and plain containers, without running anything it names.

A pickle is a program. This unpickler resolves five names, the ones a pickled array needs, and each to a stand-in that
only keeps what it is given: not even numpy's own code sees the stream. Arrays are built at the end, from checked
shapes, a few plain dtypes and bytes of exactly the right length. Every other name is refused.
"""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
import numpy.typing as npt

from fedleak.data.files import damaged

__all__ = ["load_arrays"]

PLAIN_DTYPES = {"u1": 1, "i1": 1, "u2": 2, "i2": 2, "u4": 4, "i4": 4, "u8": 8, "i8": 8}


class _StandIn:
    """Called by the pickle in place of what it names. It has no attributes that a BUILD opcode could set."""

    __slots__ = ()

    def __setstate__(self, state: object) -> NoReturn:
        raise pickle.UnpicklingError("the pickle tries to change what it was lent")


class _ArrayMarker(_StandIn):
    """In place of numpy.ndarray: only ever passed to _Reconstruct."""

    __slots__ = ()


class _Dtype:
    """In place of numpy.dtype: keeps the code ("u1") and, from its state, the byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: object) -> None:
        self.code, self.order = _text(code), "|"

    def __setstate__(self, state: Any) -> None:
        self.order = _text(state[1])


class _Array:
    """In place of an array under construction: keeps the state that the array would be built from."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reconstruct(_StandIn):
    """In place of numpy's _reconstruct."""

    __slots__ = ()

    def __call__(self, kind: object, shape: object, code: object) -> _Array:
        if not isinstance(kind, _ArrayMarker):
            raise pickle.UnpicklingError("_reconstruct of something that is not numpy.ndarray")
        return _Array()


class _MakeDtype(_StandIn):
    __slots__ = ()

    def __call__(self, code: object, align: object = None, copy: object = None) -> _Dtype:
        return _Dtype(code)


class _EncodeLatin1(_StandIn):
    """In place of _codecs.encode, by which protocol 2 writes bytes. The real one imports the codec it is told to."""

    __slots__ = ()

    def __call__(self, text: object, encoding: object) -> bytes:
        if not isinstance(text, str) or _text(encoding) not in ("latin1", "latin-1"):
            raise pickle.UnpicklingError(f"encode to {encoding!r}, not latin1")
        return text.encode("latin-1")


ADMITTED: dict[tuple[str, str], _StandIn] = {
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy", "ndarray"): _ArrayMarker(),
    ("numpy", "dtype"): _MakeDtype(),
    ("_codecs", "encode"): _EncodeLatin1(),
}


class _ArraysOnly(pickle._Unpickler):
    """Python's own unpickler, not the C one: there a damaged memo index or length allocates gigabytes at once."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is neither an array nor needed for one")
        return ADMITTED[module, name]


def load_arrays(file: Path) -> dict[str, Any]:
    """The pickled dict of a file, with its keys as text. Arrays become numpy arrays, the rest stays as it is."""
    try:
        with file.open("rb") as stream:
            found = _unpickle(stream)
            if not isinstance(found, dict):
                raise pickle.UnpicklingError(f"it holds a {type(found).__name__}, not a dict")
            return {_text(key): _built(value) for key, value in found.items()}
    except Exception as error:
        # A damaged or hostile stream can raise nearly anything (IndexError, AttributeError, MemoryError ...).
        raise damaged(file, "a pickled dict of numpy arrays and nothing else", f"{error}") from error


def _unpickle(stream: IO[bytes]) -> object:
    # The published files come from Python 2, where text and bytes were one: take its strings as bytes.
    return _ArraysOnly(stream, encoding="bytes").load()


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, str):
        return value
    raise pickle.UnpicklingError(f"a {type(value).__name__} where text belongs")


def _built(value: object) -> object:
    return _array(value) if isinstance(value, _Array) else value


def _array(kept: _Array) -> npt.NDArray[np.generic]:
    _, shape, dtype, by_columns, raw = kept.state
    if not isinstance(dtype, _Dtype) or dtype.code not in PLAIN_DTYPES or dtype.order not in ("|", "<", ">"):
        code = getattr(dtype, "code", type(dtype).__name__)
        raise pickle.UnpicklingError(f"an array of dtype {code}, not of plain integers")
    if not all(type(length) is int and length >= 0 for length in shape) or not isinstance(raw, bytes):
        raise pickle.UnpicklingError("an array without a shape or without bytes")
    size = math.prod(shape) * PLAIN_DTYPES[dtype.code]
    if len(raw) != size:
        raise pickle.UnpicklingError(f"an array of shape {tuple(shape)} with {len(raw)} bytes instead of {size}")
    order = "" if dtype.order == "|" else dtype.order
    values: npt.NDArray[np.generic] = np.frombuffer(raw, dtype=np.dtype(order + dtype.code))
    return values.reshape(shape, order="F" if by_columns else "C")
