"""The appendix: everything that somebody needs who wants to run this again and get the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedleak.audit.rows import Row
from fedleak.report.blobs import Blobs
from fedleak.report.tables import REPLICATES
from fedleak.report.words import setting

__all__ = ["Appendix", "TrialLine", "appendix_of"]


@dataclass(frozen=True)
class TrialLine:
    """A trial's address: its hash, what it was, how many rows it left."""

    trial: str
    what: str
    seed: str
    rows: int
    status: str


@dataclass(frozen=True)
class Appendix:
    """`facts` are (name, value); `splits` are the data splits as (name, value) lists, each once."""

    spec: str
    facts: tuple[tuple[str, str], ...]
    splits: tuple[tuple[tuple[str, str], ...], ...]
    notes: tuple[str, ...]
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
        splits=tuple(dict.fromkeys(tuple((str(k), str(v)) for k, v in _hash_first(split)) for split in splits)),
        notes=tuple(dict.fromkeys(note for found in known for note in _notes(found))),
        trials=_trials(rows),
        rows=len(rows),
    )


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None))


def _hash_first(split: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(split.items(), key=lambda pair: (pair[0] != "hash", pair[0]))


def _notes(found: Mapping[str, Any]) -> list[str]:
    notes = found.get("notes")
    return [f"{key}: {value}" for key, value in sorted(notes.items())] if isinstance(notes, Mapping) else []


def _trials(rows: Sequence[Row]) -> tuple[TrialLine, ...]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.trial, []).append(row)
    lines = []
    for trial, group in groups.items():
        first = next((row for row in group if row.where.get("attack") != "none"), group[0])
        what = setting(first.where, [key for key in first.where if key not in REPLICATES])
        status = _listed(row.status for row in group)
        lines.append(TrialLine(trial, what, str(first.where.get("seed", "")), len(group), status))
    return tuple(lines)
