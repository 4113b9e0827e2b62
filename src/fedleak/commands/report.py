"""`fedleak report`: the page again, from rows alone. No GPU, no data, no attack."""

from __future__ import annotations

import os
from pathlib import Path

from fedleak.audit.store import RunFolder
from fedleak.commands.output import print_json, say
from fedleak.errors import RefusedError
from fedleak.report.frontier import as_data
from fedleak.report.page import build_report, frontiers_of

__all__ = ["report_command"]


def report_command(run: Path, *, as_json: bool) -> int:
    folder = RunFolder(run)
    if not folder.rows_file.is_file():
        raise RefusedError(f"run={run}: no rows.jsonl in it, so this is not a run folder; `fedleak audit` makes one")
    if not os.access(run, os.W_OK):
        raise RefusedError(f"run={run}: not yours to write to; copy the folder, and build the report of the copy")
    page = build_report(run)
    if as_json:
        fronts = [as_data(found) for found in frontiers_of(run)]
        print_json({"report": str(page), "rows": len(folder.rows()), "frontiers": fronts})
    else:
        say(f"report: {page}")
    return 0
