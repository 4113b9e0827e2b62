"""Gates for pipelines: `--fail-above recovered=0.1` and a JUnit file that says which row crossed it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from fedleak.audit.registry import did_you_mean, registry
from fedleak.audit.rows import UTILITY, Row
from fedleak.errors import RefusedError
from fedleak.files import replace_file

__all__ = ["Crossing", "Gate", "better_low", "check_gates", "gated", "parse_gate", "write_junit"]


@dataclass(frozen=True)
class Gate:
    metric: str
    limit: float


@dataclass(frozen=True)
class Crossing:
    gate: Gate
    row: Row
    value: float

    def __str__(self) -> str:
        where = ", ".join(
            f"{k}={v}" for k, v in self.row.where.items() if k in ("protocol", "defense", "attack", "client")
        )
        return f"{self.gate.metric}={self.value:.4g} is above {self.gate.limit:g} ({where})"


def parse_gate(text: str, metrics: Sequence[str]) -> Gate:
    """METRIC=VALUE, refused before anything runs if the run would not measure it."""
    name, separator, written = text.partition("=")
    known = registry("metrics")
    try:
        limit = float(written)
    except ValueError:
        limit = math.nan
    if not separator or math.isnan(limit):
        raise RefusedError(f"--fail-above {text!r}: not of the form METRIC=VALUE, as in recovered=0.1")
    if name not in known:
        measured = ", ".join(dict.fromkeys([*metrics, "utility"]))
        raise RefusedError(
            f"--fail-above {text!r}: unknown metric {name!r}{did_you_mean(name, known)}; measured here: {measured}"
        )
    if name not in metrics and name != "utility":
        raise RefusedError(f"--fail-above {text!r}: the specification does not measure {name!r}; add it to metrics")
    return Gate(name, limit)


def better_low(metric: str) -> bool:
    """Whether an attack is the better the lower this is: a gate above it fires where nothing leaks."""
    return bool(registry("metrics")[metric].better == "lower")


def gated(rows: Sequence[Row], deployed: str | None) -> list[Row]:
    """The rows a gate looks at: those of the deployed arm where the specification names one, else all."""
    return [row for row in rows if deployed is None or row.where.get("defense") == deployed]


def check_gates(rows: Sequence[Row], gates: Sequence[Gate]) -> tuple[list[Crossing], list[Gate]]:
    """(what crossed, gates that no row could be held against)."""
    crossings, unmeasured = [], []
    for gate in gates:
        values = [(row, row.scores[gate.metric]) for row in rows if row.scores.get(gate.metric)]
        if not values:
            unmeasured.append(gate)
        for row, scores in values:
            share = sum(scores) / len(scores)
            if share > gate.limit:
                crossings.append(Crossing(gate, row, share))
    return crossings, unmeasured


def write_junit(path: Path, rows: Sequence[Row], crossings: Sequence[Crossing]) -> None:
    """One test case a row: failed where it crossed a gate, an error where it broke, skipped where it was refused."""
    crossed = {id(crossing.row): crossing for crossing in crossings}
    broken = [row for row in rows if row.status in ("failed", "out_of_memory", "timed_out")]
    suite = ElementTree.Element(
        "testsuite",
        name="fedleak",
        tests=str(len(rows)),
        failures=str(len(crossed)),
        errors=str(len(broken)),
        skipped=str(sum(row.status == "refused" for row in rows)),
    )
    for row in rows:
        kind = "utility" if row.where.get("attack") == UTILITY else str(row.where.get("attack"))
        group = f"fedleak.{row.where.get('dataset')}.{row.where.get('protocol')}.{row.where.get('defense')}"
        name = f"{kind} {row.where.get('client', '')} seed {row.where.get('seed')}".replace("  ", " ")
        case = ElementTree.SubElement(suite, "testcase", classname=group, name=name, time=f"{row.seconds:.3f}")
        if id(row) in crossed:
            ElementTree.SubElement(case, "failure", message=str(crossed[id(row)]))
        elif row in broken:
            ElementTree.SubElement(case, "error", message=row.reason)
        elif row.status == "refused":
            ElementTree.SubElement(case, "skipped", message=row.reason)
    replace_file(path, ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))
