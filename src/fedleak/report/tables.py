"""Rows to summaries: one per thing that was tried, over its seeds, rounds, clients and images. Pure data.

The report and the command line print the same summaries. Their order depends on what was tried only, never on the
order of the rows: trials that ran in parallel finish in any order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedleak.audit.rows import UTILITY, Row
from fedleak.metrics.intervals import Interval, interval, share_interval
from fedleak.metrics.registry import METRICS
from fedleak.report.kinds import EVERYBODY
from fedleak.report.summaries import Null, Summary, natural
from fedleak.report.words import HEADINGS, is_attackers
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
    """Settings that take several values where nothing but them differs. A protocol's constants are not among them.

    A setting that only some lines name is one: the others have it at its default. The strength of a defense is none
    where the defense's name says it: `gaussian(sigma=0.1)`.
    """
    seen: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for found in summaries:
        place = tuple(str(found.where.get(key)) for key in ("dataset", "model", "protocol", "attack"))
        seen.setdefault(place, []).append(found.where)
    keys = set()
    for group in seen.values():
        for key in {key for where in group for key in where if key not in NAMED or key == "preset"}:
            taken = {str(where[key]) for where in group if key in where}
            if _said_by_the_defense(key, group):
                continue
            if len(taken) > 1 or any(key not in where for where in group):
                keys.add(key)
    return sorted(keys)


def _said_by_the_defense(key: str, group: Sequence[Mapping[str, Any]]) -> bool:
    values: dict[str, set[str]] = {}
    for where in group:
        values.setdefault(str(where.get("defense")), set()).add(str(where.get(key)))
    return key.startswith("defenses.") and all(len(taken) == 1 for taken in values.values())


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

    `scores` replaces the rows' own by a difference of two. The one place that draws bootstrap samples.
    """
    lists = [row.scores.get(metric, ()) for row in rows] if scores is None else scores
    values = [float(value) for found in lists for value in found]
    if not values:
        return None
    clusters = [_cluster(row, at) for row, found in zip(rows, lists, strict=True) for at in range(len(found))]
    # A difference of two shares that happens to be 0 or 1 everywhere is not a share: it might have been -1.
    share = scores is None and metric in METRICS and METRICS[metric].unit == "share" and set(values) <= {0.0, 1.0}
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
    """Whether a federation is the one that was attacked: both name the same settings, those of the attack aside.

    What a sweep over whole tables gives to one federation alone tells it from the others.
    """
    left_out = {*REPLICATES, *ignoring}

    def own(where: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in where.items() if not is_attackers(key) and key not in left_out}

    return own(federation) == own(attacked)


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
    if metric == "victim_accuracy":  # it is the same whoever guesses
        return None
    pooled: dict[str, list[float]] = {}
    for row in rows:
        for name, scores in row.baselines.items():
            pooled.setdefault(name, []).extend(scores.get(metric, ()))
    means = [Null(name, sum(values) / len(values)) for name, values in sorted(pooled.items()) if values]
    if not means:
        return None
    best = min if metric in METRICS and METRICS[metric].better == "lower" else max
    return best(means, key=lambda null: null.mean)


def _cluster(row: Row, at: int) -> tuple[str, str]:
    """Who stands for himself: a client; where all clients are attacked together, each of the classes they hold."""
    client = str(row.where.get("client"))
    return str(row.where.get("seed")), f"{client} {at}" if client == EVERYBODY else client


def _place(row: Row) -> tuple[Any, ...]:
    """The federation first, then its defense, then the attack: what belongs together stands together."""
    where = row.where
    protocol = str(where.get("protocol"))
    known = (PROTOCOLS.index(protocol) if protocol in PROTOCOLS else len(PROTOCOLS), natural(protocol))
    others = sorted(key for key in where if key not in (*NAMED, *REPLICATES))
    federation = [(key, natural(where[key])) for key in others if not key.startswith(("attack", "defense"))]
    named = [natural(where.get(key)) for key in ("defense", "attack", "preset")]
    rest = [(key, natural(where[key])) for key in others]
    repeated = [natural(where.get(key)) for key in REPLICATES]
    first = (natural(where.get("dataset")), natural(where.get("model")), known, federation)
    return (*first, is_defended(where), named, rest, repeated, row.trial)
