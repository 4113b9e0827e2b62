"""The run folder: rows and the blobs they name. Killing a run at any point loses no finished trial.

spec.toml               the resolved specification
rows.jsonl              one row a line, whole trials only, of this specification
trials/<hash>.jsonl     the rows of each finished trial, also of earlier specifications: a changed and restored
                        specification costs nothing twice
artifacts/<sha256>      pictures, traces, provenance: named by their content, on disk before the row that names them
transcripts/<hash>/     what the server saw
truths/<hash>/          what only the evaluator holds: kept apart from the transcript on purpose
kept/                   what attacks made of a transcript alone and would make again (learned priors), under its hash
report.html
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedleak.audit.rows import Row
from fedleak.errors import RefusedError
from fedleak.files import digest, replace_file

__all__ = ["RunFolder"]


def _lines(rows: Iterable[Row]) -> bytes:
    return "".join(row.line() + "\n" for row in rows).encode()


def _parse(path: Path) -> list[Row]:
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            rows.append(Row.parse(line.decode()))
        except ValueError as problem:
            raise RefusedError(
                f"{path.parent.name}/{path.name} line {number}: not a row ({problem}); delete the file and run again"
            ) from None
    return rows


class RunFolder:
    """Reads and writes a run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # -- rows --------------------------------------------------------------------------------------------------

    @property
    def spec_file(self) -> Path:
        return self.path / "spec.toml"

    @property
    def rows_file(self) -> Path:
        return self.path / "rows.jsonl"

    def rows(self) -> list[Row]:
        """All rows of the run, in the order of the specification."""
        return _parse(self.rows_file) if self.rows_file.is_file() else []

    def write_rows(self, rows: Iterable[Row]) -> None:
        """Replace the file by these rows, at once."""
        replace_file(self.rows_file, _lines(rows))

    # -- blobs -------------------------------------------------------------------------------------------------

    def put(self, content: bytes) -> str:
        """Store a blob under the hash of its content and return that hash."""
        name = digest(content)
        path = self.path / "artifacts" / name
        if not path.is_file():
            replace_file(path, content)
        return name

    def get(self, sha256: str) -> bytes:
        """A blob; refused if it is missing or its content is not what its name says."""
        path = self.path / "artifacts" / sha256
        if not path.is_file():
            raise RefusedError(f"artifact {sha256[:12]}: missing from {path.parent.name}/; run the audit again")
        content = path.read_bytes()
        if digest(content) != sha256:
            raise RefusedError(f"artifact {sha256[:12]}: its content does not match its name; delete it and run again")
        return content

    def put_json(self, value: Any) -> str:
        return self.put(json.dumps(value, sort_keys=True, allow_nan=False).encode())

    # -- whole trials ------------------------------------------------------------------------------------------

    def finish(self, trial: str, rows: Sequence[Row]) -> None:
        """Keep the rows of a finished trial. This is the moment from which a kill no longer costs it."""
        replace_file(self.trials / f"{trial}.jsonl", _lines(rows))

    def finished(self, trial: str) -> list[Row] | None:
        """The rows of a trial that need not run again: finished, and all its artifacts are there."""
        path = self.trials / f"{trial}.jsonl"
        if not path.is_file():
            return None
        rows = _parse(path)
        there = (self.path / "artifacts" / name for row in rows for name in row.artifacts.values())
        return rows if all(blob.is_file() for blob in there) else None

    @property
    def trials(self) -> Path:
        return self.path / "trials"

    @property
    def kept(self) -> Path:
        return self.path / "kept"

    def transcript(self, federation: str) -> Path:
        return self.path / "transcripts" / federation

    def truth(self, federation: str) -> Path:
        return self.path / "truths" / federation
