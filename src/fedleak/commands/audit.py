"""`fedleak audit`: run a specification, build the report, hold the rows against the gates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedleak.audit.device import choose_device
from fedleak.audit.display import Display
from fedleak.audit.rows import Row
from fedleak.audit.runner import run_audit
from fedleak.audit.spec import read_spec
from fedleak.audit.toml import parse_assignment
from fedleak.commands.gate import better_low, check_gates, gated, parse_gate, write_junit
from fedleak.commands.output import print_json, rows_document, say, warn
from fedleak.data import data_root
from fedleak.files import make_room_for
from fedleak.report import build_report
from fedleak.report.terminal import summary_table

__all__ = ["audit_command"]


def audit_command(
    source: Path | None,
    *,
    out: Path | None,
    device: str,
    seed: int | None,
    jobs: int | None,
    executor: str,
    changes: Sequence[str],
    gates: Sequence[str],
    junit: Path | None,
    data: str | None,
    allow_code: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    assignments = [parse_assignment(text) for text in changes]
    if seed is not None:
        assignments.append(("seeds", [seed]))
    spec = read_spec(source, assignments, allow_code=allow_code)
    limits = [parse_gate(text, spec.metrics) for text in gates]
    for limit in limits:
        if better_low(limit.metric):
            warn(f"--fail-above {limit.metric}: attacks want it low, so this fires where they fail")
    if junit is not None:
        make_room_for(junit, "--junit")
    out = out or Path("runs") / ("default" if source is None else source.stem)
    rows = run_audit(
        spec,
        out,
        data_root=data_root(data),
        device=choose_device(device, executor),
        jobs=jobs,
        executor=executor,
        display=Display(quiet=quiet),
    )
    page = build_report(out)
    held = gated(rows, spec.deployed)
    crossings, unmeasured = check_gates(held, limits)
    if junit is not None:
        write_junit(junit, held, crossings)
    if not (quiet and as_json):
        say(summary_table(rows), as_json)
        say(f"report: {page}", as_json)
    code = _exit_code(rows, crossings, unmeasured)
    if as_json:
        print_json(rows_document(rows))
    return code


def _exit_code(rows: Sequence[Row], crossings: Sequence[object], unmeasured: Sequence[object]) -> int:
    failed = [row for row in rows if row.status in ("failed", "out_of_memory", "timed_out")]
    for row in failed:
        warn(f"{row.status}: {row.where.get('attack')} on {row.where.get('protocol')}: {row.reason}")
    if crossings:
        more = "" if len(crossings) == 1 else f" (and {len(crossings) - 1} more)"
        warn(f"gate crossed: {crossings[0]}{more}")
        return 3
    if unmeasured:
        warn(f"a gate could not be checked: no gated row holds {unmeasured[0]}")
        return 1
    return 1 if failed else 0
