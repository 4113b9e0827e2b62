"""What rows point at: pictures, traces, provenance. A blob that is gone costs its picture, never the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays

from fedleak.audit.rows import Row
from fedleak.audit.store import RunFolder
from fedleak.errors import RefusedError

__all__ = ["Arrays", "Blobs"]

Arrays = Mapping[str, NDArray[Any]]


class Blobs:
    """Reads the blobs of a run folder and remembers which could not be read."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._json: dict[str, Mapping[str, Any]] = {}
        self.problems: dict[str, str] = {}

    def images(self, row: Row) -> Arrays:
        """`original` and `reconstruction`, (n, C, H, W), and perhaps `prior` and `snapshots`; empty where there are
        none."""
        found = self._arrays(row, "images")
        if not found:
            return {}
        if not {"original", "reconstruction"} <= found.keys():
            return self._lost(row, "images", "has no original and reconstruction")
        original, reconstruction = found["original"], found["reconstruction"]
        if original.ndim != 4 or original.shape != reconstruction.shape:
            return self._lost(row, "images", f"shapes {original.shape} and {reconstruction.shape} do not fit")
        return {
            name: np.asarray(value, dtype=np.float64)
            for name, value in found.items()
            if name != "prior" or value.shape == original.shape
        }

    def entropies(self, row: Row) -> Arrays:
        """How sure the models of a federation are: "server on public" and the like to nats; finite values only."""
        found = sorted(self._arrays(row, "entropies").items())
        flat = {name: np.asarray(value, dtype=np.float64).ravel() for name, value in found}
        return {name: value[np.isfinite(value)] for name, value in flat.items()}

    def trace(self, row: Row) -> tuple[list[int], list[float]]:
        """Steps and the objective at each of them; a value that is not finite ends the trace."""
        found = self._mapping(row, "trace")
        pairs = []
        for step, value in zip(found.get("steps", ()), found.get("objective", ()), strict=False):
            if not isinstance(value, int | float) or not np.isfinite(value):
                break
            pairs.append((int(step), float(value)))
        return [step for step, _ in pairs], [value for _, value in pairs]

    def provenance(self, row: Row) -> Mapping[str, Any]:
        return self._mapping(row, "provenance")

    def facts(self, row: Row) -> Mapping[str, Any]:
        """Plain values that belong beside the scores of a row."""
        return self._mapping(row, "facts")

    def _arrays(self, row: Row, name: str) -> Arrays:
        content = self._content(row, name)
        if content is None:
            return {}
        try:
            return load_arrays(content)
        except (SafetensorError, ValueError) as problem:
            return self._lost(row, name, f"not safetensors ({problem})")

    def _mapping(self, row: Row, name: str) -> Mapping[str, Any]:
        sha256 = row.artifacts.get(name, "")
        if sha256 not in self._json:
            content = self._content(row, name)
            try:
                found = json.loads(content) if content is not None else {}
            except ValueError as problem:
                found = self._lost(row, name, f"not JSON ({problem})")
            self._json[sha256] = found if isinstance(found, Mapping) else self._lost(row, name, "not a JSON object")
        return self._json[sha256]

    def _content(self, row: Row, name: str) -> bytes | None:
        if name not in row.artifacts:
            return None
        try:
            return self._folder.get(row.artifacts[name])
        except RefusedError as problem:
            self.problems[row.artifacts[name]] = str(problem)
            return None

    def _lost(self, row: Row, name: str, why: str) -> dict[str, Any]:
        sha256 = row.artifacts[name]
        self.problems[sha256] = f"artifact {sha256[:12]} ({name}): {why}"
        return {}
