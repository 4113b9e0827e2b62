"""Differences within the same federations, as cells of a table: one attack or setting less another, example by example;
one defense against another at the same privacy loss, seed by seed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from fedleak.audit.rows import UTILITY, Row
from fedleak.metrics import Interval, paired_difference
from fedleak.report.matched import curves_by_seed, matched_difference
from fedleak.reproduction.cells import BOOTSTRAP_SEED, Cell, statistics_of
from fedleak.reproduction.evidence import Evidence
from fedleak.reproduction.statistics import Statistic
from fedleak.reproduction.table import Matched, Paired, Table

__all__ = ["compared"]

Where = dict[str, Any]
Groups = list[tuple[Where, list[Row]]]


def compared(
    name: str, table: Table, rows: Sequence[Row], evidence: Evidence | None = None, changed: Collection[str] = ()
) -> list[Cell]:
    """The cells of every [[paired]] and [[matched]] of a table, in its order. No published number stands beside trials
    in `changed`."""
    found: list[Cell] = []
    for wanted in table.paired:
        statistic = statistics_of(name, table)[wanted.metric]
        groups = _grouped(table, rows, table.group_by)
        found += _paired(wanted, statistic, table, groups, evidence or Evidence(), changed)
    for matched in table.matched:
        # One curve is one federation under many defenses, so the defense does not tell groups apart, nor the attack:
        # test accuracy stands in the federation's own row.
        keys = [key for key in table.group_by if key not in ("defense", "attack")]
        for where, group in _grouped(table, rows, keys):
            found += _matched(matched, where, group)
    return found


def _grouped(table: Table, rows: Sequence[Row], keys: Sequence[str]) -> Groups:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        where = table.renamed(row.where)
        groups.setdefault(tuple(where.get(key) for key in keys), []).append(row)
    return [({k: v for k, v in zip(keys, at, strict=True) if v is not None}, group) for at, group in groups.items()]


def _paired(
    wanted: Paired,
    statistic: Statistic,
    table: Table,
    groups: Groups,
    evidence: Evidence,
    changed: Collection[str],
) -> Iterator[Cell]:
    for where, group in groups:
        if where.get("attack") == UTILITY or where.get(wanted.key) in (None, wanted.against):
            continue
        if any(where.get(key) != value for key, value in wanted.where.items()):
            continue
        baseline = {**where, wanted.key: wanted.against, **wanted.but}
        other = next((rows for at, rows in groups if at == baseline), None)
        made = None if other is None else _difference(group, other, statistic, evidence)
        if made is not None:
            theirs, base = (table.published_number(at, wanted.metric) for at in (where, baseline))
            as_published = not any(row.trial in changed for row in (*group, *(other or ())))
            published = round(theirs - base, 6) if as_published and theirs is not None and base is not None else None
            yield Cell(where, wanted.name, published, made.mean, made.low, made.high, made.n)


def _difference(
    ours: Sequence[Row], theirs: Sequence[Row], statistic: Statistic, evidence: Evidence
) -> Interval | None:
    """Paired by seed, client and example; a victim that met only one of the two is left out."""
    other = {_victim(row): list(statistic.of(row, evidence)) for row in theirs}
    a: list[float] = []
    b: list[float] = []
    clusters: list[tuple[Any, Any]] = []
    for row in ours:
        pairs = list(zip(statistic.of(row, evidence), other.get(_victim(row), []), strict=False))
        kept = [(x, y) for x, y in pairs if x is not None and y is not None]
        a += [x for x, _ in kept]
        b += [y for _, y in kept]
        clusters += [_victim(row)] * len(kept)
    return paired_difference(a, b, clusters, rng=BOOTSTRAP_SEED) if a else None


def _victim(row: Row) -> tuple[Any, Any]:
    return row.where.get("seed"), row.where.get("client")


def _matched(wanted: Matched, where: Mapping[str, Any], rows: Sequence[Row]) -> Iterator[Cell]:
    curves = curves_by_seed(rows, wanted.attack)
    for other in wanted.others:
        for level in wanted.levels:
            made = matched_difference(curves.get(other, {}), curves.get(wanted.cheap, {}), level)
            if made is None or made.n < 2:
                continue  # where fewer than two seeds reach the level with both, there is nothing to be sure of
            at = {"attack": wanted.attack, **where, "defense": wanted.cheap, "privacy_loss": level}
            low, mean, high = (100.0 * value for value in (made.low, made.mean, made.high))
            yield Cell(at, f"utility_saved_over_{other}", None, mean, low, high, made.n)
