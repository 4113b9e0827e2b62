"""Rows: the only results fedleak writes. One row per victim of a trial, and one for the utility of its federation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from fedleak.errors import RefusedError
from fedleak.notebook import row_html
from fedleak.types import Status

__all__ = ["MAY_DIFFER", "SCHEMA", "UTILITY", "Row"]

SCHEMA = 1
MAY_DIFFER = ("seconds", "started", "finished")
"""The only fields that may differ between two runs of the same spec on the same device kind."""
UTILITY = "none"
"""`where["attack"]` of the row that holds a federation's test accuracy: nobody attacked."""


@dataclass(frozen=True)
class Row:
    """One result.

    `where` is a flat object that says what was tried; `scores` maps a metric to one finite number per example;
    `baselines` maps a null baseline ("mean_image", "noise", "other_image") to the scores of somebody who saw nothing;
    `artifacts` maps a name to the sha256 of a blob in the run folder: `images` (safetensors: original, reconstruction
    in the same order, snapshots), `trace` (JSON: steps, objective), `provenance` (JSON: versions, device,
    what the defense proves), `split` (JSON: the manifest of who holds what).
    """

    trial: str
    where: Mapping[str, Any]
    scores: Mapping[str, Sequence[float]]
    n: int
    status: Status
    reason: str = ""
    threshold: float | None = None
    granted: tuple[str, ...] = ()
    objective: float | None = None
    """The attack's own objective at the end: all there is to judge by where the truth is not known."""
    baselines: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)
    artifacts: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    started: str = ""
    finished: str = ""

    def __post_init__(self) -> None:
        for metric, values in self.scores.items():
            bad = [v for v in values if not math.isfinite(v)]
            if bad:
                raise RefusedError(f"scores[{metric!r}] holds {bad[0]}: a row holds finite numbers only")

    def line(self) -> str:
        """One line of JSON. Keys in a fixed order, so that equal rows are equal bytes."""
        return json.dumps(asdict(self), sort_keys=True, allow_nan=False)

    def _repr_html_(self) -> str:
        return row_html(self)

    def same_result_as(self, other: Row) -> bool:
        """Equal in everything but the clock."""
        mine, theirs = ({k: v for k, v in json.loads(r.line()).items() if k not in MAY_DIFFER} for r in (self, other))
        return bool(mine == theirs)

    @staticmethod
    def parse(line: str) -> Row:
        """A line back as a row. ValueError for anything that is none, such as a row of another version of fedleak."""
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError("not a JSON object")
        known = {one.name: one.default is MISSING and one.default_factory is MISSING for one in fields(Row)}
        if strange := sorted(set(found) - set(known)):
            raise ValueError(f"unknown fields: {', '.join(strange)}")
        if missing := [name for name, required in known.items() if required and name not in found]:
            raise ValueError(f"missing fields: {', '.join(missing)}")
        for name in ("where", "scores", "baselines", "unavailable", "artifacts"):
            if not isinstance(found.get(name, {}), dict):
                raise ValueError(f"{name} is no JSON object")
        return Row(**{**found, "granted": tuple(found.get("granted", ()))})
