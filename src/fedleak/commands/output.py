"""Where output goes: JSON to stdout, everything for people to stderr or, without --json, to stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from fedleak.audit.rows import SCHEMA, Row

__all__ = ["is_narrow", "print_json", "rows_document", "say", "warn"]


def print_json(document: Any) -> None:
    """Exactly one document."""
    json.dump(document, sys.stdout, allow_nan=False, indent=1)
    sys.stdout.write("\n")


def rows_document(rows: Sequence[Row]) -> dict[str, Any]:
    return {"schema": SCHEMA, "rows": [json.loads(row.line()) for row in rows]}


def say(text: Any, as_json: bool = False) -> None:
    """For people: text or a rich table."""
    from rich.console import Console

    stream = sys.stderr if as_json else sys.stdout
    # A pipe has no width: do not cut a table at 80 columns there.
    console = Console(file=stream, width=None if stream.isatty() else 160)
    console.print(text, highlight=False, markup=False, soft_wrap=isinstance(text, str))


def is_narrow() -> bool:
    """Whether a person reads this on a terminal that has no room for a wide table."""
    from rich.console import Console

    return sys.stdout.isatty() and Console(file=sys.stdout).width < 100


def warn(text: str) -> None:
    print(f"fedleak: {text}", file=sys.stderr)
