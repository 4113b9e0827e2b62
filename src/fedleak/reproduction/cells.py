"""From rows to the cells of a published table: theirs, ours, and how sure ours is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedleak.audit.rows import UTILITY, Row
from fedleak.errors import RefusedError
from fedleak.metrics import Interval, interval, share_interval
from fedleak.reproduction.statistics import STATISTICS
from fedleak.reproduction.table import Table

__all__ = ["Cell", "cells"]

BOOTSTRAP_SEED = 20260
"""Fixed: the same rows give the same intervals."""


@dataclass(frozen=True)
class Cell:
    """One cell: `ours` with its 95 % interval (cluster bootstrap over seeds, clients, images)."""

    where: dict[str, Any]
    metric: str
    published: float | None
    ours: float
    low: float
    high: float
    n: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def cells(name: str, table: Table, rows: Sequence[Row]) -> tuple[list[Cell], list[dict[str, Any]]]:
    """(cells in the order of the rows, what failed and why)."""
    paper = name.partition("/")[0]
    statistics = STATISTICS.get(paper, {})
    unknown = [metric for metric in table.metrics if metric not in statistics]
    if unknown:
        raise RefusedError(f"papers/{name}.toml: metrics {unknown} are not statistics of {paper}")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.where.get("attack") != UTILITY:
            groups.setdefault(tuple(row.where.get(key) for key in table.group_by), []).append(row)
    found: list[Cell] = []
    failed: list[dict[str, Any]] = []
    for key, group in groups.items():
        where = {name: value for name, value in zip(table.group_by, key, strict=True) if value is not None}
        for row in group:
            if row.status not in ("ok", "diverged"):
                failed.append({"where": {**where, "client": row.where.get("client")}, "reason": row.reason})
        for metric in table.metrics:
            values: list[float] = []
            clusters: list[tuple[Any, Any]] = []
            for row in group:
                kept = [v for v in statistics[metric](row) if v is not None and math.isfinite(v)]
                values += kept
                clusters += [(row.where.get("seed"), row.where.get("client"))] * len(kept)
            if not values:
                reason = next((row.unavailable[m] for row in group for m in row.unavailable if m == metric), "")
                failed.append({"where": where, "metric": metric, "reason": reason or "no example has this number"})
                continue
            ours = _interval(values, clusters)
            published = table.published_number(where, metric)
            found.append(Cell(where, metric, published, ours.mean, ours.low, ours.high, ours.n))
    return found, failed


def _interval(values: Sequence[float], clusters: Sequence[tuple[Any, Any]]) -> Interval:
    """A percentage of 0/1 outcomes gets an honest interval even where all agree; everything else the plain one."""
    if set(values) <= {0.0, 100.0}:
        share = share_interval([value / 100 for value in values], clusters, rng=BOOTSTRAP_SEED)
        return Interval(100 * share.mean, 100 * share.low, 100 * share.high, share.n, share.resampled)
    return interval(values, clusters, rng=BOOTSTRAP_SEED)
