"""Everything fedleak raises on purpose.

    FedleakError                    a user's mistake or a refused input: one clear message, exit code 2
    ├── SpecError                   an audit specification with one or more problems, all of them listed
    ├── TranscriptError             a transcript that is damaged, unsafe, or of a newer schema
    ├── DataError                   a data set that is missing or not in its published layout
    ├── KnowledgeError              an attack needs what the transcript does not disclose
    ├── ShapeError                  two things that must have the same shape do not
    └── RefusedError                a request that is well formed but cannot be served, with the reason

A message names the thing, its value, the rule it breaks and the way out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "DataError",
    "FedleakError",
    "KnowledgeError",
    "Problem",
    "RefusedError",
    "ShapeError",
    "SpecError",
    "TranscriptError",
]


class FedleakError(Exception):
    """Base of all errors that are a user's to fix. The command line prints it without a traceback and exits with 2."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a specification, with the path to it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class SpecError(FedleakError):
    """All problems of a specification at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        head = "1 problem" if count == 1 else f"{count} problems"
        super().__init__("\n".join([f"{head} in the specification:", *(f"  {p}" for p in self.problems)]))


class TranscriptError(FedleakError):
    """A transcript that cannot be read safely."""


class DataError(FedleakError):
    """A data set that is missing or not in its published layout."""


class KnowledgeError(FedleakError):
    """An attack needs knowledge that the transcript does not disclose."""


class ShapeError(FedleakError):
    """Two things that must have the same shape do not. Never broadcast over it."""


class RefusedError(FedleakError):
    """A well-formed request that cannot be served, with the reason."""
