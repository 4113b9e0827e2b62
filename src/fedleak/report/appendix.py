"""The appendix: everything that somebody needs who wants to run this again and get the same rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedleak.audit.rows import UTILITY, Row
from fedleak.report.blobs import Blobs
from fedleak.report.tables import NAMED, REPLICATES
from fedleak.report.words import setting

__all__ = ["Appendix", "TrialLine", "appendix_of"]


@dataclass(frozen=True)
class TrialLine:
    """A trial's address: its hash, what it was, how many rows it left, what the attack noted on its way."""

    trial: str
    what: str
    seed: str
    rows: int
    status: str
    notes: str


@dataclass(frozen=True)
class Appendix:
    """`facts` are (name, value); `splits` are the data splits as (name, value) lists, each once."""

    spec: str
    facts: tuple[tuple[str, str], ...]
    splits: tuple[tuple[tuple[str, str], ...], ...]
    trials: tuple[TrialLine, ...]
    rows: int


def appendix_of(spec: str, rows: Sequence[Row], blobs: Blobs) -> Appendix:
    known = [found for row in rows if (found := blobs.provenance(row))]
    facts: list[tuple[str, str]] = [("rows", str(len(rows))), ("trials", str(len({row.trial for row in rows})))]
    facts += [
        ("seeds", _listed(row.where.get("seed") for row in rows)),
        ("device", _listed(k.get("device") for k in known)),
    ]
    facts.append(("threads", _listed(k.get("threads") for k in known)))
    versions = [found["versions"] for found in known if isinstance(found.get("versions"), Mapping)]
    for name in sorted({name for found in versions for name in found}):
        facts.append((name, _listed(found.get(name) for found in versions)))
    splits = [found["split"] for found in known if isinstance(found.get("split"), Mapping)]
    return Appendix(
        spec=spec,
        facts=tuple((name, value) for name, value in facts if value),
        splits=tuple(dict.fromkeys(tuple((str(k), _short(v)) for k, v in _hash_first(split)) for split in splits)),
        trials=_trials(rows, blobs),
        rows=len(rows),
    )


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None))


def _hash_first(split: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The split's hash, then the rest by name; tables within it are opened, what was not set is left out."""
    flat = {key: value for key, value in split.items() if not isinstance(value, Mapping)}
    for inner in split.values():
        if isinstance(inner, Mapping):
            flat = {**inner, **flat}
    return sorted(
        ((key, value) for key, value in flat.items() if value is not None),
        key=lambda pair: (pair[0] != "hash", pair[0]),
    )


def _short(value: Any) -> str:
    if isinstance(value, list | tuple) and value and all(isinstance(part, Mapping) for part in value):
        return _short("; ".join(_part(part) for part in value))
    text = _part(value) if isinstance(value, Mapping) else str(value)
    return text if len(text) <= 200 else f"{text[:200]} ..."


def _part(part: Mapping[str, Any]) -> str:
    """A table on one line, without what was not set; of the images that a public set is made of the number."""
    told = {key: value for key, value in part.items() if key not in ("index", "source", "digest") and value is not None}
    words = [f"{key} {value}" for key, value in told.items()]
    return ", ".join([*words, *([f"{len(part['index'])} images"] if isinstance(part.get("index"), list) else [])])


def _notes(found: Mapping[str, Any]) -> str:
    """chunk 10; restarts 0 to 2; ended converged (8), diverged (1): what is noted per client is counted."""
    notes = found.get("notes")
    if not isinstance(notes, Mapping):
        return ""
    return "; ".join(f"{key.replace('_', ' ')} {_counted(value)}" for key, value in sorted(notes.items()))


def _counted(value: Any) -> str:
    if not isinstance(value, Mapping | list):
        return _short(value)
    leaves = _leaves(value)
    if leaves and all(isinstance(leaf, int | float) and not isinstance(leaf, bool) for leaf in leaves):
        return f"{min(leaves)}" if min(leaves) == max(leaves) else f"{min(leaves)} to {max(leaves)}"
    return _short(", ".join(f"{leaf} ({count})" for leaf, count in sorted(Counter(map(str, leaves)).items())))


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [leaf for inner in value.values() for leaf in _leaves(inner)]
    return [leaf for inner in value for leaf in _leaves(inner)] if isinstance(value, list) else [value]


def _trials(rows: Sequence[Row], blobs: Blobs) -> tuple[TrialLine, ...]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.trial, []).append(row)
    lines = []
    for trial, group in groups.items():
        first = next((row for row in group if row.where.get("attack") != UTILITY), group[0])
        named = [str(first.where[key]) for key in NAMED if first.where.get(key) is not None]
        others = sorted(key for key in first.where if key not in (*NAMED, *REPLICATES))
        what = " · ".join(part for part in (*named, setting(first.where, others)) if part)
        status = _listed(row.status for row in group)
        notes = _notes(blobs.provenance(first))
        lines.append(TrialLine(trial, what, str(first.where.get("seed", "")), len(group), status, notes))
    return tuple(lines)
