"""The schema of manifest.json, checked before any tensor is read.

Tensors are stored under short numbered keys ("b0", "m3.t12"); the manifest maps them to parameter names in order, so
that a hostile or merely odd parameter name never becomes a file name or a tensor key.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError, model_validator

from fedleak.errors import TranscriptError

__all__ = [
    "DTYPES",
    "MANIFEST",
    "SCHEMA",
    "Entry",
    "Manifest",
    "MessageEntry",
    "PayloadEntry",
    "RoundEntry",
    "SetupEntry",
    "StoredFile",
    "read_manifest",
]

SCHEMA = 1
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 64 * 2**20
MAX_FILE_BYTES = 32 * 2**30

DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}


class Entry(BaseModel):
    """Unknown keys are refused: a typo in a hand-edited manifest must not pass silently."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class TensorEntry(Entry):
    name: Annotated[str, Field(max_length=1000)]
    key: Annotated[str, Field(pattern=r"^[a-z0-9.]{1,64}$")]
    dtype: str
    shape: list[NonNegativeInt]

    @model_validator(mode="after")
    def known_dtype(self) -> TensorEntry:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        return self


class PayloadEntry(Entry):
    kind: Literal["gradients", "weights", "predictions"]
    tensors: list[TensorEntry]
    buffers: list[TensorEntry] = []
    scale: Literal["logits", "probabilities"] | None = None

    @model_validator(mode="after")
    def consistent(self) -> PayloadEntry:
        names = [t.name for t in self.tensors]
        if any(len({one.name for one in listed}) != len(listed) for listed in (self.tensors, self.buffers)):
            raise ValueError("two tensors have the same name")
        if self.kind == "predictions":
            if names != ["values", "index"] or self.scale is None:
                raise ValueError("predictions need the tensors 'values' and 'index' and a scale")
            values, index = self.tensors
            if len(index.shape) != 1 or not values.shape or values.shape[0] != index.shape[0]:
                raise ValueError(f"predictions of shape {values.shape} do not fit an index of shape {index.shape}")
            if "int" not in index.dtype:
                raise ValueError(f"an index of {index.dtype} does not say which public examples are meant")
        return self


class MessageEntry(Entry):
    sender: Annotated[str, Field(min_length=1, max_length=1000)]
    payload: PayloadEntry
    disclosed: dict[str, Any] = {}


class StoredFile(Entry):
    file: Annotated[str, Field(pattern=r"^(round-[0-9]{4,9}|public)\.safetensors$")]
    bytes: Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class RoundEntry(StoredFile):
    index: PositiveInt
    broadcast: PayloadEntry | None
    received: list[MessageEntry]
    server: PayloadEntry | None = None

    @model_validator(mode="after")
    def one_message_a_sender(self) -> RoundEntry:
        senders = [m.sender for m in self.received]
        if len(set(senders)) != len(senders):
            raise ValueError("two messages of one round have the same sender")
        if self.broadcast is not None and self.broadcast.kind == "gradients":
            raise ValueError("a server broadcasts weights or predictions, not gradients")
        return self


class SetupEntry(Entry):
    model: Annotated[str, Field(min_length=1, max_length=1000)]
    arguments: dict[str, Any]
    input_shape: list[PositiveInt]
    classes: PositiveInt
    loss: str
    mean: list[float]
    std: list[float]
    disclosed: dict[str, Any]


class PublicEntry(StoredFile):
    tensors: list[TensorEntry]


class Manifest(Entry):
    kind: Literal["fedleak-transcript"] = "fedleak-transcript"
    schema_version: Annotated[int, Field(alias="schema")] = SCHEMA
    setup: SetupEntry
    public: PublicEntry | None = None
    rounds: list[RoundEntry] = []

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True)

    @model_validator(mode="after")
    def rounds_in_order(self) -> Manifest:
        indices = [r.index for r in self.rounds]
        if any(b <= a for a, b in itertools.pairwise(indices)):
            raise ValueError(f"round indices must rise, found {indices[:10]}")
        if len({r.file for r in self.rounds}) != len(self.rounds):
            raise ValueError("two rounds name the same file")
        return self


def read_manifest(folder: Path) -> Manifest:
    """Parse and check manifest.json. One clear TranscriptError for anything that is wrong."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise TranscriptError(f"transcript={folder}: not a folder; a transcript is a folder with {MANIFEST}")
    if not path.is_file() or path.is_symlink():
        raise TranscriptError(
            f"transcript={folder}: no {MANIFEST} in it, so this is not a transcript; "
            "give the folder that holds it (a recording, or transcripts/<hash> of a run)"
        )
    size = path.stat().st_size
    if size > MAX_MANIFEST_BYTES:
        raise TranscriptError(f"{MANIFEST}: {size} bytes, at most {MAX_MANIFEST_BYTES} are read; it is not a manifest")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:
        raise TranscriptError(f"{MANIFEST}: not readable as JSON ({problem}); the transcript is damaged") from None
    version = found.get("schema") if isinstance(found, dict) else None
    if isinstance(version, int) and version > SCHEMA:
        raise TranscriptError(
            f"{MANIFEST}: schema={version}, this fedleak reads up to {SCHEMA}; install a newer fedleak to read it"
        )
    if version != SCHEMA or isinstance(version, bool):
        raise TranscriptError(f"{MANIFEST}: schema={version!r} is not {SCHEMA}; this is not a fedleak transcript")
    try:
        return Manifest.model_validate(found)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "top level"
        raise TranscriptError(f"{MANIFEST}: {where}: {first['msg']}; the transcript is damaged") from None
