"""A data set as its reader hands it over: whole, as uint8, before anything is split or resized."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedleak.errors import ShapeError

__all__ = ["Dataset", "Images"]


@dataclass(frozen=True, eq=False)
class Images:
    """Pixels 0 to 255 as uint8 (n, C, H, W), labels (n,) and, where the source knows them, writers (n,).

    `domains` (n,) is 0 for images of the domain that is private, 1 for those of another (young faces in lag); None: the
    source has one domain.

    They stay uint8 until a client takes them: 60,000 digits are 47 MB this way and 188 MB as float32.
    """

    inputs: Tensor
    labels: Tensor
    writers: Tensor | None = None
    domains: Tensor | None = None

    def __post_init__(self) -> None:
        if self.inputs.dtype != torch.uint8 or self.inputs.ndim != 4:
            raise ShapeError(
                f"inputs: {self.inputs.dtype} of shape {tuple(self.inputs.shape)}; must be uint8 (n, C, H, W)"
            )
        for name, values in (("labels", self.labels), ("writers", self.writers), ("domains", self.domains)):
            if values is None:
                continue
            if values.dtype != torch.int64 or values.shape != self.inputs.shape[:1]:
                raise ShapeError(
                    f"{name}: {values.dtype} of shape {tuple(values.shape)}; "
                    f"must be int64 ({len(self.inputs)},), one for each image"
                )

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named data set. `test` is the official test part, or None where the source has none.

    `source` says in words where the examples came from; it never holds a path of the machine it was read on.
    """

    name: str
    train: Images
    test: Images | None
    classes: int
    source: str

    @cached_property
    def digest(self) -> str:
        """sha256 of the content: shapes, pixels, labels, writers, domains. Names and paths do not enter."""
        state = hashlib.sha256(f"classes={self.classes}".encode())
        for part_name, part in (("train", self.train), ("test", self.test)):
            if part is None:
                continue
            for name in ("inputs", "labels", "writers", "domains"):
                values = getattr(part, name)
                if values is not None:
                    state.update(f"|{part_name}.{name}:{values.dtype}{tuple(values.shape)}|".encode())
                    state.update(values.contiguous().numpy().data)
        return state.hexdigest()
