"""Runs `fedleak` as a user does, in this process: arguments in, exit code and both streams out."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from fedleak.cli import main

__all__ = ["Answer", "fedleak"]


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout as exactly one JSON document."""
        return json.loads(self.out)


def fedleak(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Answer:
    """The exit code and what was printed."""
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["fedleak", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    found = capsys.readouterr()
    code = ended.value.code
    return Answer(0 if code is None else int(code), found.out, found.err)
