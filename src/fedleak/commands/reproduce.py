"""`fedleak reproduce`: run the experiment behind a published table and print theirs, ours and the difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedleak.audit.device import choose_device
from fedleak.audit.display import Display
from fedleak.audit.registry import did_you_mean
from fedleak.audit.rows import Row
from fedleak.audit.runner import run_audit
from fedleak.audit.spec import make_spec
from fedleak.audit.toml import merged
from fedleak.commands.catalog import list_command
from fedleak.commands.output import print_json, say, warn
from fedleak.data import data_root
from fedleak.errors import DataError, RefusedError
from fedleak.report import build_report
from fedleak.reproduction import Cell, Table, cells, load_table

__all__ = ["reproduce_command"]


def reproduce_command(
    name: str | None,
    *,
    scale: str,
    seeds: int | None,
    data: str | None,
    out: Path | None,
    device: str,
    jobs: int | None,
    quiet: bool,
    as_json: bool,
) -> int:
    if name is None:
        return list_command("tables", as_json=as_json)
    table = load_table(name)
    if scale not in table.scales:
        known = ", ".join(table.scales)
        raise RefusedError(f"scale={scale!r}: choose one of {known}{did_you_mean(scale, table.scales)}")
    out = out or Path("runs") / "reproduce" / f"{name.replace('/', '-')}-{scale}"
    rows = _run(table, scale, seeds, data, out, choose_device(device), jobs, Display(quiet=quiet))
    build_report(out)
    found, failed = cells(name, table, rows)
    if as_json:
        print_json({"table": name, "scale": scale, "cells": [c.as_json() for c in found], "failed": failed})
    else:
        _print(name, table, scale, found)
        say(f"rows and report: {out}")
    for entry in failed:
        warn(f"no cell for {entry['where']}{' ' + entry['metric'] if 'metric' in entry else ''}: {entry['reason']}")
    return 1 if any(row.status in ("failed", "out_of_memory", "timed_out") for row in rows) else 0


def _run(
    table: Table,
    scale: str,
    seeds: int | None,
    data: str | None,
    out: Path,
    device: str,
    jobs: int | None,
    display: Display,
) -> list[Row]:
    over = dict(table.scales[scale])
    instead = over.pop("instead", None)

    def attempt(tables: Mapping[str, Any]) -> list[Row]:
        if seeds is not None:
            tables = {**tables, "seeds": list(range(seeds))}
        return run_audit(make_spec(tables), out, data_root=data_root(data), device=device, jobs=jobs, display=display)

    wanted = merged(table.spec, over)
    try:
        return attempt(wanted)
    except DataError as problem:
        if instead is None:
            raise
        # `data` is replaced, not merged: keys of one data set may mean nothing to another.
        replaced = {**merged(wanted, instead), "data": instead["data"]}
        display.note(str(problem).splitlines()[0])
        display.note(f"using {instead['data']['name']} instead; the published numbers do not apply to it")
        return attempt(replaced)


def _print(name: str, table: Table, scale: str, found: Sequence[Cell]) -> None:
    from rich.table import Table as RichTable

    shown = RichTable(title=f"{name} ({scale}): {table.title}", title_justify="left")
    for column in ("where", "metric", "theirs", "ours", "95 % interval", "difference", "n"):
        shown.add_column(column, justify="left" if column in ("where", "metric") else "right")
    for cell in found:
        where = " ".join(str(value) for value in cell.where.values())
        theirs = "" if cell.published is None else f"{cell.published:.4g}"
        difference = "" if cell.published is None else f"{cell.ours - cell.published:+.4g}"
        shown.add_row(
            where,
            cell.metric,
            theirs,
            f"{cell.ours:.4g}",
            f"{cell.low:.4g} .. {cell.high:.4g}",
            difference,
            str(cell.n),
        )
    say(shown)
    if table.notes:
        say(table.notes.strip())
