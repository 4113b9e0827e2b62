"""The record of a split: enough to say exactly who held what, and one hash for all of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

__all__ = ["SplitManifest"]


@dataclass(frozen=True)
class SplitManifest:
    """Which examples went where.

    Indices count through the training part of the data set as it was read; `test` counts through its official test
    part where `test_from` is "official", and through the training part where it is "held_out".

    `public` is None without a public set; else its parts ({dataset, digest, source, domain, altered, index}, the index
    counting through the training part of that data set), the target labels, and the number of twins.
    """

    dataset: str
    digest: str
    source: str
    parameters: Mapping[str, Any]
    seed: int
    seed_path: tuple[str, ...]
    clients: Mapping[str, tuple[int, ...]]
    test: tuple[int, ...]
    test_from: Literal["official", "held_out"]
    public: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain JSON data, with the hash."""
        return {**self._content(), "hash": self.hash}

    @cached_property
    def hash(self) -> str:
        """sha256 over everything but `source`, which is only words: the same content from another file is the same."""
        content = {key: value for key, value in self._content().items() if key != "source"}
        if self.public is not None:
            parts = [{key: value for key, value in part.items() if key != "source"} for part in self.public["parts"]]
            content["public"] = {**self.public, "parts": parts}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def _content(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "digest": self.digest,
            "source": self.source,
            "parameters": dict(self.parameters),
            "seed": self.seed,
            "seed_path": list(self.seed_path),
            "clients": {name: list(index) for name, index in self.clients.items()},
            "test": list(self.test),
            "test_from": self.test_from,
            **({} if self.public is None else {"public": dict(self.public)}),
        }
