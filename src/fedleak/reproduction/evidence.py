"""What the rows of a reproduction point at: loss and pictures on the way, over the run folders of its panels."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as load_arrays

from fedleak.audit.rows import Row
from fedleak.audit.spec import Spec
from fedleak.audit.store import RunFolder
from fedleak.errors import RefusedError

__all__ = ["Evidence", "loss_factors"]

Floats = NDArray[np.float64]
HIGHEST_DB = 120.0
"""As the metric: an exact copy would be infinitely good."""


Factors = dict[tuple[str, str], float]


def loss_factors(spec: Spec) -> Factors:
    """(attack, preset) to what it multiplies its objective by. The papers draw the objective itself."""
    choices = [choice for point in spec.points for choice in point.attacks]
    return {(c.name, str(c.attack.preset)): float(getattr(c.attack, "factor", 1.0)) for c in choices}


class Evidence:
    """Reads the artifacts of rows. What is missing or damaged is empty: a curve less, never a broken run."""

    def __init__(self, folders: Sequence[Path] = (), factors: Mapping[tuple[str, str], float] | None = None) -> None:
        self._folders = [RunFolder(path) for path in folders]
        self._factors = dict(factors or {})
        self.images = lru_cache(maxsize=64)(self._images)

    def loss(self, row: Row) -> float | None:
        """The attack's loss at the end, as its equation has it."""
        return None if row.objective is None else row.objective / self._factor(row)

    def losses(self, row: Row) -> list[tuple[int, float]]:
        """(iteration, loss) of the start that counts; a value that is not finite ends the list."""
        content = self._content(row.artifacts.get("trace", ""))
        trace = {} if content is None else json.loads(content)
        pairs: list[tuple[int, float]] = []
        for step, value in zip(trace.get("steps", ()), trace.get("objective", ()), strict=False):
            if value is None or not math.isfinite(value):
                break
            pairs.append((int(step), float(value) / self._factor(row)))
        return pairs

    def psnrs(self, row: Row) -> list[tuple[int, Floats]]:
        """(iteration, PSNR of every image) where snapshots were kept."""
        shown = self.images(row.artifacts.get("images", ""))
        if not {"original", "snapshots", "snapshot_steps"} <= shown.keys():
            return []
        errors = np.square(shown["snapshots"].astype(float) - shown["original"].astype(float)[None]).mean((2, 3, 4))
        values = np.minimum(-10 * np.log10(np.maximum(errors, 1e-300)), HIGHEST_DB)
        return [(int(step), values[at]) for at, step in enumerate(shown["snapshot_steps"])]

    def facts(self, row: Row) -> Mapping[str, Any]:
        """Plain values that were judged beside the scores."""
        content = self._content(row.artifacts.get("facts", ""))
        return {} if content is None else dict(json.loads(content))

    def _images(self, sha256: str) -> Mapping[str, NDArray[Any]]:
        content = self._content(sha256)
        return {} if content is None else dict(load_arrays(content))

    def _content(self, sha256: str) -> bytes | None:
        for folder in self._folders:
            try:
                return folder.get(sha256) if sha256 else None
            except RefusedError:  # missing here, or damaged
                continue
        return None

    def _factor(self, row: Row) -> float:
        return self._factors.get((str(row.where.get("attack")), str(row.where.get("preset"))), 1.0)
