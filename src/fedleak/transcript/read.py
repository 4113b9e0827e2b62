"""Reading a transcript lazily and safely: a round's tensors are read when the round is asked for.

Guarantees: nothing is unpickled, no file outside the folder is opened, sizes and hashes are checked before a tensor is
handed out, and anything wrong is one TranscriptError.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedleak.errors import TranscriptError
from fedleak.transcript.manifest import (
    DTYPES,
    Manifest,
    PayloadEntry,
    RoundEntry,
    StoredFile,
    TensorEntry,
    read_manifest,
)
from fedleak.types import (
    Gradients,
    Message,
    ModelSpec,
    Normalisation,
    Payload,
    Predictions,
    PublicSet,
    Round,
    Setup,
    Transcript,
    Weights,
)

__all__ = ["load_transcript"]


def load_transcript(folder: Path | str) -> Transcript:
    """Open a transcript. The manifest is checked now, each round when it is read."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    return Transcript(_setup(folder, manifest), _StoredRounds(folder, manifest.rounds))


class _StoredRounds(Sequence[Round]):
    """Rounds on disk. Keeps the last one it read: attacks look at one round many times."""

    def __init__(self, folder: Path, entries: Sequence[RoundEntry]) -> None:
        self._folder, self._entries = folder, entries
        self.indices = [entry.index for entry in entries]
        self._last: tuple[int, Round] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        position = range(len(self))[at]
        if self._last is None or self._last[0] != position:
            self._last = (position, _round(self._folder, self._entries[position]))
        return self._last[1]


def _tensors(folder: Path, stored: StoredFile, expected: Sequence[TensorEntry]) -> dict[str, Tensor]:
    """All tensors of one file by key, after size, hash, keys, dtypes and shapes were compared with the manifest."""
    path = folder / stored.file
    if path.is_symlink() or not path.is_file():
        raise TranscriptError(f"{stored.file}: missing or not a plain file; the transcript is incomplete")
    if (size := path.stat().st_size) != stored.bytes:
        raise TranscriptError(f"{stored.file}: {size} bytes, the manifest says {stored.bytes}; the file is damaged")
    content_hash = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 22):
            content_hash.update(part)
    if content_hash.hexdigest() != stored.sha256:
        raise TranscriptError(f"{stored.file}: its content does not match the manifest's sha256; the file is damaged")
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, ValueError, KeyError, OSError) as problem:
        raise TranscriptError(f"{stored.file}: not readable as safetensors ({problem})") from None
    keys = [entry.key for entry in expected]
    if len(set(keys)) != len(keys) or set(keys) != set(tensors):
        raise TranscriptError(f"{stored.file}: holds other tensors than the manifest lists; the transcript is damaged")
    for entry in expected:
        found = tensors[entry.key]
        if list(found.shape) != entry.shape or found.dtype != DTYPES[entry.dtype]:
            raise TranscriptError(
                f"{stored.file}: tensor {entry.name!r} is {found.dtype} {list(found.shape)}, "
                f"the manifest says {entry.dtype} {entry.shape}; the transcript is damaged"
            )
    return tensors


def _listed(payload: PayloadEntry | None) -> list[TensorEntry]:
    return [] if payload is None else [*payload.tensors, *payload.buffers]


def _named(entries: Sequence[TensorEntry], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {entry.name: tensors[entry.key] for entry in entries}


def _payload(entry: PayloadEntry, tensors: Mapping[str, Tensor]) -> Payload:
    named = _named(entry.tensors, tensors)
    if entry.kind == "gradients":
        return Gradients(named)
    if entry.kind == "weights":
        return Weights(named, _named(entry.buffers, tensors))
    assert entry.scale is not None  # the manifest's own check
    return Predictions(values=named["values"], scale=entry.scale, index=named["index"])


def _round(folder: Path, entry: RoundEntry) -> Round:
    expected = [*_listed(entry.broadcast), *_listed(entry.server)]
    for message in entry.received:
        expected.extend(_listed(message.payload))
    tensors = _tensors(folder, entry, expected)
    broadcast = None if entry.broadcast is None else _payload(entry.broadcast, tensors)
    server = None if entry.server is None else _payload(entry.server, tensors)
    if isinstance(broadcast, Gradients) or not (server is None or isinstance(server, Predictions)):
        raise TranscriptError(f"{entry.file}: a payload of the wrong kind; the transcript is damaged")
    received = tuple(
        Message(message.sender, _payload(message.payload, tensors), message.disclosed) for message in entry.received
    )
    return Round(entry.index, broadcast, received, server)


def _setup(folder: Path, manifest: Manifest) -> Setup:
    entry, public = manifest.setup, None
    if len(entry.mean) != len(entry.std) or any(value == 0 for value in entry.std):
        raise TranscriptError(f"manifest.json: mean {entry.mean} and std {entry.std} are no normalisation")
    if len(entry.input_shape) == 3 and len(entry.mean) not in (1, entry.input_shape[0]):
        raise TranscriptError(
            f"manifest.json: mean {entry.mean} of pictures of {entry.input_shape}; give one number, or one per channel"
        )
    if manifest.public is not None:
        named = _named(manifest.public.tensors, _tensors(folder, manifest.public, manifest.public.tensors))
        if "inputs" not in named:
            raise TranscriptError("manifest.json: the public set has no tensor 'inputs'; the transcript is damaged")
        pixels = named["inputs"]
        pixels = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
        public = PublicSet(pixels, named.get("labels"), named.get("domains"))
    return Setup(
        model=ModelSpec(entry.model, entry.arguments),
        input_shape=tuple(entry.input_shape),
        classes=entry.classes,
        loss=entry.loss,
        normalisation=Normalisation(tuple(entry.mean), tuple(entry.std)),
        public=public,
        disclosed=entry.disclosed,
    )
