"""Writing a transcript round by round. A kill at any moment leaves every finished round readable."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from fedleak.errors import TranscriptError
from fedleak.files import canonical, replace_file
from fedleak.transcript.manifest import (
    DTYPES,
    MANIFEST,
    Manifest,
    MessageEntry,
    PayloadEntry,
    PublicEntry,
    RoundEntry,
    SetupEntry,
    TensorEntry,
)
from fedleak.types import Gradients, Message, Payload, Predictions, PublicSet, Round, Setup, Transcript, Weights

__all__ = ["TranscriptWriter", "save_transcript"]

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class _Shelf:
    """Collects the tensors of one file under numbered keys."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def add(self, prefix: str, named: Mapping[str, Tensor]) -> list[TensorEntry]:
        entries = []
        for number, (name, value) in enumerate(named.items()):
            if value.dtype not in _NAMES:
                raise TranscriptError(f"tensor {name!r}: dtype {value.dtype} is not one of {', '.join(DTYPES)}")
            key = f"{prefix}{number}"
            # A copy on purpose: safetensors refuses tensors that share memory, and weights may be tied.
            self.tensors[key] = value.detach().cpu().contiguous().clone()
            entries.append(TensorEntry(name=name, key=key, dtype=_NAMES[value.dtype], shape=list(value.shape)))
        return entries

    def payload(self, prefix: str, payload: Payload) -> PayloadEntry:
        match payload:
            case Gradients(tensors=tensors):
                return PayloadEntry(kind="gradients", tensors=self.add(f"{prefix}.t", tensors))
            case Weights(tensors=tensors, buffers=buffers):
                return PayloadEntry(
                    kind="weights",
                    tensors=self.add(f"{prefix}.t", tensors),
                    buffers=self.add(f"{prefix}.b", buffers),
                )
            case Predictions(values=values, scale=scale, index=index):
                entries = self.add(f"{prefix}.p", {"values": values, "index": index})
                return PayloadEntry(kind="predictions", tensors=entries, scale=scale)

    def write(self, folder: Path, name: str) -> dict[str, Any]:
        """One safetensors file by atomic rename, and what the manifest says of it."""
        path, temporary = folder / name, folder / f".{name}.{os.getpid()}.tmp"
        try:
            _save(self.tensors, temporary)
            content_hash = hashlib.sha256()
            with temporary.open("rb") as file:
                while part := file.read(1 << 22):
                    content_hash.update(part)
                os.fsync(file.fileno())
            size = temporary.stat().st_size
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        return {"file": name, "bytes": size, "sha256": content_hash.hexdigest()}


def _save(tensors: Mapping[str, Tensor], file: Path) -> None:
    """OSError where the system cannot store them: safetensors has one error for everything, and the system's own number
    stands only in its words."""
    try:
        save_file(dict(tensors), file)
    except SafetensorError as problem:
        number = re.search(r"os error (\d+)", str(problem))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file.parent)) from problem


class TranscriptWriter:
    """Opens a new transcript folder and appends rounds to it.

    Guarantees: after `append` returns, the round is readable even if the process is killed at once. The tensors land
    before the manifest that names them; both by atomic rename.
    """

    def __init__(self, folder: Path | str, setup: Setup) -> None:
        folder = Path(folder)
        if (folder / MANIFEST).exists():
            raise TranscriptError(f"transcript={folder}: there is one already; write to a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._manifest = Manifest(setup=_setup(setup), public=self._public(setup.public))
        self._flush()

    def append(self, seen: Round) -> None:
        """Adds a round; TranscriptError where it contradicts itself (two messages of one sender, predictions whose
        length is not that of their index, an index that does not rise), and nothing is written."""
        try:
            self._append(seen)
        except pydantic.ValidationError as problem:
            said = problem.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            raise TranscriptError(f"round {seen.index}: {said}; nothing of it was written") from None

    def _append(self, seen: Round) -> None:
        shelf = _Shelf()
        described: dict[str, Any] = {
            "index": seen.index,
            "broadcast": None if seen.broadcast is None else shelf.payload("b", seen.broadcast),
            "received": [_message(shelf, number, message) for number, message in enumerate(seen.received)],
            "server": None if seen.server is None else shelf.payload("s", seen.server),
        }
        name = f"round-{seen.index:04d}.safetensors"
        # Checked before the file is there: the name of a round that contradicts may be that of one already written.
        self._with(RoundEntry(**described, file=name, bytes=0, sha256="0" * 64))
        self._manifest = self._with(RoundEntry(**described, **shelf.write(self.folder, name)))
        self._flush()

    def _with(self, entry: RoundEntry) -> Manifest:
        changed = self._manifest.model_copy(update={"rounds": [*self._manifest.rounds, entry]})
        return Manifest.model_validate(changed.model_dump(by_alias=True))

    def _public(self, public: PublicSet | None) -> PublicEntry | None:
        if public is None:
            return None
        shelf = _Shelf()
        parts = {"inputs": _bytes_where_exact(public.inputs), "labels": public.labels, "domains": public.domains}
        entries = shelf.add("p", {name: value for name, value in parts.items() if value is not None})
        return PublicEntry(tensors=entries, **shelf.write(self.folder, "public.safetensors"))

    def _flush(self) -> None:
        replace_file(self.folder / MANIFEST, canonical(self._manifest.model_dump(by_alias=True)))


def _bytes_where_exact(pixels: Tensor) -> Tensor:
    """Pixels as 0 to 255 where that loses nothing: photographs come as bytes, and a public set of them is large."""
    levels = (pixels * 255).round()
    exact = pixels.dtype == torch.float32 and bool(torch.equal(levels.clamp(0, 255) / 255, pixels))
    return levels.to(torch.uint8) if exact else pixels


def _message(shelf: _Shelf, number: int, message: Message) -> MessageEntry:
    payload = shelf.payload(f"m{number}", message.payload)
    return MessageEntry(sender=message.sender, payload=payload, disclosed=dict(message.disclosed))


def _setup(setup: Setup) -> SetupEntry:
    return SetupEntry(
        model=setup.model.name,
        arguments=dict(setup.model.arguments),
        input_shape=list(setup.input_shape),
        classes=setup.classes,
        loss=setup.loss,
        mean=list(setup.normalisation.mean),
        std=list(setup.normalisation.std),
        disclosed=dict(setup.disclosed),
    )


def save_transcript(transcript: Transcript, folder: Path | str) -> None:
    """Write a whole transcript to a new folder."""
    writer = TranscriptWriter(folder, transcript.setup)
    for seen in transcript.rounds:
        writer.append(seen)
