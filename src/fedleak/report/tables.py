"""Rows to summaries: one per thing that was tried, over its seeds, rounds, clients and images. Pure data.

The report and the command line print the same summaries. Their order depends on what was tried only, never on the
order of the rows: trials that ran in parallel finish in any order.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedleak.audit.rows import UTILITY, Row
from fedleak.metrics.intervals import Interval, interval, share_interval
from fedleak.metrics.registry import METRICS
from fedleak.report.words import HEADINGS
from fedleak.seeding import Seeds

__all__ = [
    "NAMED",
    "REPLICATES",
    "Null",
    "Summary",
    "agrees",
    "is_defended",
    "mean_of",
    "ordered",
    "summary",
    "swept",
    "utility_rows",
]

REPLICATES = ("seed", "round", "client")
"""What a summary averages over. Everything else in `where` says what was tried."""

NAMED = ("dataset", "model", "protocol", "defense", "attack", "preset")
"""Settings with a name of their own. The rest was swept."""

PROTOCOLS = ("fedsgd", "fedavg", "fedmd", "fedgems", "dsfl")


@dataclass(frozen=True)
class Null:
    """The best that somebody reaches who saw nothing of what was sent."""

    name: str
    mean: float


@dataclass(frozen=True)
class Summary:
    """One protocol, defense, attack (and whatever was swept), over everything that was repeated."""

    where: Mapping[str, Any]
    rows: tuple[Row, ...]
    scores: Mapping[str, Interval]
    nulls: Mapping[str, Null]
    utility: Interval | None

    @property
    def images(self) -> int:
        """How many images were judged: a victim whose trial failed has none."""
        return max((found.n for found in self.scores.values()), default=0)

    @property
    def recovered(self) -> Interval | None:
        return self.scores.get("recovered")

    @property
    def recovered_images(self) -> int:
        return round(sum(sum(row.scores.get("recovered", ())) for row in self.rows))

    @property
    def status(self) -> dict[str, int]:
        """Victims by how their attack ended, most frequent first."""
        return dict(sorted(Counter(str(row.status) for row in self.rows).items(), key=lambda pair: (-pair[1], pair[0])))

    @property
    def granted(self) -> tuple[str, ...]:
        return tuple(sorted({name for row in self.rows for name in row.granted}))

    @property
    def thresholds(self) -> tuple[float, ...]:
        return tuple(sorted({row.threshold for row in self.rows if row.threshold is not None}))

    @property
    def clients(self) -> int:
        return len({str(row.where["client"]) for row in self.rows if "client" in row.where})

    @property
    def seeds(self) -> tuple[Any, ...]:
        return tuple(sorted({row.where["seed"] for row in self.rows if "seed" in row.where}, key=_natural))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON and for people's own tables."""
        found: dict[str, Any] = {
            "where": dict(self.where),
            "images": self.images,
            "victims": len(self.rows),
            "status": self.status,
            "granted": list(self.granted),
            "thresholds": list(self.thresholds),
            "seeds": list(self.seeds),
            "scores": {metric: _plain(value) for metric, value in self.scores.items()},
            "nulls": {metric: {"name": null.name, "mean": null.mean} for metric, null in self.nulls.items()},
        }
        return {**found, "utility": None if self.utility is None else _plain(self.utility)}


def summary(rows: Iterable[Row]) -> list[Summary]:
    """Attacked rows grouped by what was tried, each beside its null baselines and its federation's test accuracy."""
    known = ordered(rows)
    accuracies = utility_rows(known)
    groups: dict[str, list[Row]] = {}
    for row in known:
        if row.where.get("attack") != UTILITY:
            groups.setdefault(json.dumps(tried(row), sort_keys=True, default=str), []).append(row)
    return [_summarise(group, accuracies) for group in groups.values()]


def swept(summaries: Iterable[Summary]) -> list[str]:
    """Settings that take several values where nothing but them differs. A protocol's constants are not among them."""
    seen: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for found in summaries:
        place = tuple(str(found.where.get(key)) for key in ("dataset", "model", "protocol", "attack"))
        values = seen.setdefault(place, {})
        for key, value in found.where.items():
            if key not in NAMED:
                values.setdefault(key, set()).add(str(value))
    return sorted({key for values in seen.values() for key, taken in values.items() if len(taken) > 1})


def tried(row: Row) -> dict[str, Any]:
    """What was tried: `where` without what is averaged over."""
    return {key: value for key, value in row.where.items() if key not in REPLICATES}


def ordered(rows: Iterable[Row]) -> list[Row]:
    """Rows in an order that depends on their content only: undefended first, 9 before 10."""
    return sorted(rows, key=_place)


def is_defended(where: Mapping[str, Any]) -> bool:
    return str(where.get("defense") or "none") not in ("none", "identity")


def mean_of(rows: Sequence[Row], metric: str, scores: Sequence[Sequence[float]] | None = None) -> Interval | None:
    """The mean over all images with its 95 % interval; None where no row has this metric.

    `scores` replaces the rows' own (a baseline's, or a difference of two). The one place that draws bootstrap samples.
    """
    lists = [row.scores.get(metric, ()) for row in rows] if scores is None else scores
    values = [float(value) for found in lists for value in found]
    if not values:
        return None
    clusters = [_cluster(row) for row, found in zip(rows, lists, strict=True) for _ in found]
    share = metric in METRICS and METRICS[metric].unit == "share" and set(values) <= {0.0, 1.0}
    draw = share_interval if share else interval
    return draw(values, clusters, rng=Seeds(0).generator("report", "interval", metric))


def utility_rows(rows: Iterable[Row]) -> list[Row]:
    """Rows with a test accuracy. Trials that share a federation may each bring the same one: it counts once."""
    found: dict[str, Row] = {}
    for row in rows:
        if row.where.get("attack") == UTILITY and row.scores.get("utility"):
            found.setdefault(
                json.dumps([dict(row.where), list(row.scores["utility"])], sort_keys=True, default=str), row
            )
    return list(found.values())


def agrees(federation: Mapping[str, Any], attacked: Mapping[str, Any], ignoring: Sequence[str] = ()) -> bool:
    """Whether a federation is the one that was attacked: every setting that both of them name is the same."""
    left_out = {"attack", "preset", *REPLICATES, *ignoring}
    return all(attacked[key] == value for key, value in federation.items() if key in attacked and key not in left_out)


def _summarise(rows: Sequence[Row], accuracies: Sequence[Row]) -> Summary:
    where = tried(rows[0])
    metrics = {metric for row in rows for metric in row.scores}
    known = [metric for metric in HEADINGS if metric in metrics]
    scores = {metric: mean_of(rows, metric) for metric in [*known, *sorted(metrics - set(known))]}
    return Summary(
        where=where,
        rows=tuple(rows),
        scores={metric: found for metric, found in scores.items() if found is not None},
        nulls={metric: null for metric in scores if (null := _best_null(rows, metric)) is not None},
        utility=mean_of([row for row in accuracies if agrees(row.where, where)], "utility"),
    )


def _best_null(rows: Sequence[Row], metric: str) -> Null | None:
    pooled: dict[str, list[float]] = {}
    for row in rows:
        for name, scores in row.baselines.items():
            pooled.setdefault(name, []).extend(scores.get(metric, ()))
    means = [Null(name, sum(values) / len(values)) for name, values in sorted(pooled.items()) if values]
    if not means:
        return None
    best = min if metric in METRICS and METRICS[metric].better == "lower" else max
    return best(means, key=lambda null: null.mean)


def _cluster(row: Row) -> tuple[str, str]:
    return str(row.where.get("seed")), str(row.where.get("client"))


def _plain(found: Interval) -> dict[str, Any]:
    return {"mean": found.mean, "low": found.low, "high": found.high, "n": found.n}


def _place(row: Row) -> tuple[Any, ...]:
    """The federation first, then its defense, then the attack: what belongs together stands together."""
    where = row.where
    protocol = str(where.get("protocol"))
    known = (PROTOCOLS.index(protocol) if protocol in PROTOCOLS else len(PROTOCOLS), _natural(protocol))
    others = sorted(key for key in where if key not in (*NAMED, *REPLICATES))
    federation = [(key, _natural(where[key])) for key in others if not key.startswith(("attack", "defense"))]
    named = [_natural(where.get(key)) for key in ("defense", "attack", "preset")]
    rest = [(key, _natural(where[key])) for key in others]
    repeated = [_natural(where.get(key)) for key in REPLICATES]
    first = (_natural(where.get("dataset")), _natural(where.get("model")), known, federation)
    return (*first, is_defended(where), named, rest, repeated, row.trial)


def _natural(value: Any) -> tuple[tuple[int, float, str], ...]:
    """Text with its numbers compared as numbers."""
    parts = re.split(r"(\d+\.?\d*(?:e[-+]?\d+)?)", str(value))
    return tuple((0, float(part), "") if at % 2 else (1, 0.0, part) for at, part in enumerate(parts) if part)
