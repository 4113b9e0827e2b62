"""Which cells of a published table are wanted: `--only method=prior --only E=10`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedleak.audit.registry import did_you_mean
from fedleak.audit.toml import parse_assignment
from fedleak.errors import RefusedError
from fedleak.reproduction.table import Table

__all__ = ["Selection"]


class Selection:
    """What a trial's `where` must say, by the short names of the table: for every key one of the values given for it.

    It also remembers what the trials of the table say, for the message where nothing is left.
    """

    def __init__(self, table: Table, wanted: Sequence[str]) -> None:
        self.table = table
        self.wanted: dict[str, list[Any]] = {}
        for text in wanted:
            key, value = parse_assignment(text, "--only")
            self.wanted.setdefault(key, []).extend(value if isinstance(value, list) else [value])
        self.kept = 0
        self._said: dict[str, set[Any]] = {}

    def of(self, panel: str) -> Callable[[Mapping[str, Any]], bool] | None:
        """Whether a trial of this part of the table is wanted; None where all are."""
        if not self.wanted:
            return None

        def keep(where: Mapping[str, Any]) -> bool:
            short = self.table.renamed({**where, "panel": panel} if panel else where)
            for key, value in short.items():
                self._said.setdefault(key, set()).add(value)
            kept = all(key in short and short[key] in values for key, values in self.wanted.items())
            self.kept += kept
            return kept

        return keep

    def check(self) -> None:
        """An error where nothing of the table is wanted, with what there would be."""
        if not self.wanted or self.kept:
            return
        for key, values in self.wanted.items():
            if key not in self._said:
                raise RefusedError(
                    f"--only {key}=...: nothing in this table has {key!r}{did_you_mean(key, self._said)}; "
                    f"there are {', '.join(sorted(self._said))}"
                )
            if not any(value in self._said[key] for value in values):
                there = ", ".join(sorted(map(str, self._said[key])))
                raise RefusedError(f"--only {key}: no trial has {', '.join(map(str, values))}; there are {there}")
        asked = ", ".join(f"{key}={'/'.join(map(str, values))}" for key, values in self.wanted.items())
        raise RefusedError(f"--only: no trial has all of {asked}; leave one of them out")
