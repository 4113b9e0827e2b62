"""From rows to the cells of a published table: theirs, ours, and how sure ours is."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedleak.audit.rows import UTILITY, Row
from fedleak.errors import RefusedError
from fedleak.metrics import Interval, interval, share_interval
from fedleak.reproduction.evidence import Evidence
from fedleak.reproduction.statistics import STATISTICS, Statistic
from fedleak.reproduction.table import Table

__all__ = ["Cell", "cells", "statistics_of"]

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

    @property
    def label(self) -> str:
        """Where it stands, in words; a number says of what."""
        words = [value if isinstance(value, str) else f"{key} {value}" for key, value in self.where.items()]
        return " ".join(words)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def statistics_of(name: str, table: Table) -> Mapping[str, Statistic]:
    """The statistics that a table asks for, by name."""
    paper = name.partition("/")[0]
    known = STATISTICS.get(paper, {})
    unknown = [metric for metric in table.metrics if metric not in known]
    if unknown:
        raise RefusedError(f"papers/{name}.toml: metrics {unknown} are not statistics of {paper}")
    return {metric: known[metric] for metric in table.metrics}


def cells(
    name: str, table: Table, rows: Sequence[Row], evidence: Evidence | None = None, changed: Collection[str] = ()
) -> tuple[list[Cell], list[dict[str, Any]]]:
    """(cells in the order of the rows, what failed and why). No published number stands beside trials in `changed`."""
    statistics = statistics_of(name, table)
    evidence = evidence or Evidence()
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        where = table.renamed(row.where)
        groups.setdefault(tuple(where.get(key) for key in table.group_by), []).append(row)
    found: list[Cell] = []
    failed: list[dict[str, Any]] = []
    for key, group in groups.items():
        where = {name: value for name, value in zip(table.group_by, key, strict=True) if value is not None}
        federation = where.get("attack") == UTILITY
        wanted = {metric: made for metric, made in statistics.items() if made.of_federation == federation}
        if not wanted:
            continue
        for row in group:
            if row.status not in ("ok", "diverged"):
                failed.append({"where": {**where, "client": row.where.get("client")}, "reason": row.reason})
        for metric, statistic in wanted.items():
            values: list[float] = []
            clusters: list[tuple[Any, Any]] = []
            for row in group:
                kept = [v for v in statistic.of(row, evidence) if v is not None and math.isfinite(v)]
                values += kept
                clusters += [(row.where.get("seed"), row.where.get("client"))] * len(kept)
            if not values and statistic.may_lack and all(row.status in ("ok", "diverged") for row in group):
                continue
            if not values:
                reason = next((row.unavailable[m] for row in group for m in row.unavailable if m == metric), "")
                failed.append({"where": where, "metric": metric, "reason": reason or "no example has this number"})
                continue
            ours = _interval(values, clusters, statistic.one)
            other = any(row.trial in changed for row in group)
            published = None if other else _published(table, where, statistic.beside or metric, statistic.less)
            found.append(Cell(where, metric, published, ours.mean, ours.low, ours.high, ours.n))
    return found, failed


def _published(table: Table, where: Mapping[str, Any], metric: str, less: str) -> float | None:
    """The paper's number; of a difference that of its two, where both are given."""
    number, other = (None if not name else table.published_number(where, name) for name in (metric, less))
    if not less or number is None:
        return number
    return None if other is None else round(number - other, 6)


def _interval(values: Sequence[float], clusters: Sequence[tuple[Any, Any]], one: float | None) -> Interval:
    """Successes and failures get an honest interval even where all agree; everything else the plain one."""
    if one is None:
        return interval(values, clusters, rng=BOOTSTRAP_SEED)
    share = share_interval([value / one for value in values], clusters, rng=BOOTSTRAP_SEED)
    return Interval(one * share.mean, one * share.low, one * share.high, share.n, share.resampled)
