"""`fedleak reproduce`: run the experiment behind a published table and print theirs, ours and the difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedleak.audit.device import choose_device
from fedleak.audit.display import Display
from fedleak.audit.rows import Row
from fedleak.audit.runner import run_audit
from fedleak.audit.spec import Spec, make_spec
from fedleak.audit.toml import parse_assignment
from fedleak.commands.catalog import list_command
from fedleak.commands.output import print_json, say, warn
from fedleak.data import data_root
from fedleak.errors import DataError
from fedleak.report import build_report
from fedleak.reproduction import (
    Cell,
    Evidence,
    Selection,
    Table,
    cells,
    compared,
    draw_figures,
    load_table,
    loss_factors,
    under_other_conditions,
)

__all__ = ["reproduce_command"]


def reproduce_command(
    name: str | None,
    *,
    scale: str,
    seeds: int | None,
    panels: Sequence[str],
    only: Sequence[str],
    changes: Sequence[str],
    data: str | None,
    out: Path | None,
    device: str,
    jobs: int | None,
    executor: str,
    quiet: bool,
    as_json: bool,
) -> int:
    if name is None:
        return list_command("tables", as_json=as_json)
    table = load_table(name)
    parts = table.parts(scale, panels)
    selection = Selection(table, only)
    out = out or Path("runs") / "reproduce" / f"{name.replace('/', '-')}-{scale}"
    rows: list[Row] = []
    folders: list[Path] = []
    absent: list[dict[str, Any]] = []
    factors: dict[tuple[str, str], float] = {}
    display = Display(quiet=quiet)
    run = partial(
        run_audit,
        data_root=data_root(data),
        device=choose_device(device, executor),
        jobs=jobs,
        executor=executor,
        display=display,
    )
    assignments = [parse_assignment(text) for text in changes]
    if seeds is not None:
        assignments.append(("seeds", list(range(seeds))))
    changed: set[str] = set()
    for panel, (wanted, instead) in parts.items():
        if panel:
            display.note(f"{name}, panel {panel}")
        folder = out / panel if panel else out
        here = partial(run, out=folder, only=selection.of(panel))
        try:
            spec, own, found_rows = _run(wanted, instead, assignments, here, display)
        except DataError as problem:
            # A panel whose data set is not there is left out and listed; the others run.
            if len(parts) == 1:
                raise
            absent.append({"where": table.renamed({"panel": panel}), "reason": " ".join(str(problem).split())})
            display.note(str(problem))
            continue
        if not found_rows and only:
            continue
        folders.append(folder)
        factors.update(loss_factors(spec))
        changed |= under_other_conditions(found_rows, spec, own) if changes else set()
        # In memory only: a row on disk knows nothing of the table it is for.
        rows += [replace(row, where={**row.where, "panel": panel}) if panel else row for row in found_rows]
        build_report(folders[-1])
    selection.check()
    if not folders:
        raise DataError(f"{name}: no panel has its data ({'; '.join(entry['reason'] for entry in absent)})")
    evidence = Evidence(folders, factors)
    found, failed = cells(name, table, rows, evidence, changed)
    found += compared(name, table, rows, evidence, changed)
    if changed:
        display.note("--set: where it changes the conditions of a cell, no published number stands beside it")
    failed = [*absent, *failed]
    drawn = draw_figures(table, found, rows, evidence, out)
    if not as_json:
        _print(name, table, scale, found)
        say(f"rows and report: {', '.join(map(str, folders))}")
        if drawn:
            say(f"figures: {', '.join(map(str, drawn))}")
    for entry in failed:
        warn(f"no cell for {entry['where']}{' ' + entry['metric'] if 'metric' in entry else ''}: {entry['reason']}")
    if as_json:
        print_json({"table": name, "scale": scale, "cells": [c.as_json() for c in found], "failed": failed})
    return 1 if any(row.status in ("failed", "out_of_memory", "timed_out") for row in rows) else 0


def _run(
    wanted: Mapping[str, Any],
    instead: Mapping[str, Any] | None,
    changes: Sequence[tuple[str, Any]],
    run: Callable[[Spec], list[Row]],
    display: Display,
) -> tuple[Spec, Spec, list[Row]]:
    """One part of a table, what it is without the changes, and its rows; on the data that stands in for it where its
    own is missing."""

    def attempt(tables: Mapping[str, Any]) -> tuple[Spec, Spec, list[Row]]:
        spec = make_spec(tables, changes)
        return spec, make_spec(tables), run(spec)

    try:
        return attempt(wanted)
    except DataError as problem:
        if instead is None:
            raise
        display.note(str(problem))
        display.note(f"using {instead['data']['name']} instead; the published numbers do not apply to it")
        return attempt(instead)


def _print(name: str, table: Table, scale: str, found: Sequence[Cell]) -> None:
    from rich.table import Table as RichTable

    shown = RichTable(title=f"{name} ({scale}): {table.title}", title_justify="left")
    for column in ("where", "metric", "theirs", "ours", "95 % interval", "difference", "n"):
        shown.add_column(column, justify="left" if column in ("where", "metric") else "right")
    for cell in found:
        theirs = "" if cell.published is None else f"{cell.published:.4g}"
        difference = "" if cell.published is None else f"{cell.ours - cell.published:+.4g}"
        shown.add_row(
            cell.label,
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
