"""A run that is killed at any moment resumes without losing or doubling a row."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small import SMALL

from fedleak.audit.rows import MAY_DIFFER
from fedleak.audit.runner import run_audit
from fedleak.audit.spec import make_spec
from fedleak.audit.store import RunFolder
from fedleak.audit.toml import dumps

TINY: dict[str, Any] = {
    **SMALL,
    "protocol": {"name": "fedavg", "examples": 1},
    "attacks": [{"name": "dlm_plus", "steps": 1, "restarts": 0}],
}


class Killed(BaseException):
    """Stands for SIGKILL: nothing that catches ordinary exceptions stops it."""


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(row.line()) for row in RunFolder(folder).rows()]
    return [{key: value for key, value in row.items() if key not in MAY_DIFFER} for row in rows]


def run(out: Path) -> None:
    run_audit(make_spec(TINY), out, data_root=Path("nowhere"), jobs=1)


def test_a_crash_before_or_after_any_rename_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every change on disk is a rename: so crash once before and once after each of them."""
    monkeypatch.setattr("fedleak.audit.runner.estimate", lambda *_: "")
    real_replace, real_rename = os.replace, os.rename
    calls, crash_at, after = 0, -1, False

    def counting(real: Any) -> Any:
        def renamed(*arguments: Any, **more: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == crash_at and not after:
                raise Killed
            real(*arguments, **more)
            if calls == crash_at and after:
                raise Killed

        return renamed

    monkeypatch.setattr(os, "replace", counting(real_replace))
    monkeypatch.setattr(os, "rename", counting(real_rename))
    run(tmp_path / "whole")
    whole, steps = rows_of(tmp_path / "whole"), calls
    assert steps > 20
    for step in range(1, steps + 1, 3):
        for after in (False, True):
            out = tmp_path / f"crash-{step}-{after}"
            calls, crash_at = 0, step
            with pytest.raises(Killed):
                run(out)
            assert all(row in whole for row in rows_of(out))
            crash_at = -1
            run(out)
            assert rows_of(out) == whole


def killed_runs(tmp_path: Path, kills: int, jobs: int) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(dumps(SMALL))
    command = [sys.executable, "-m", "fedleak", "audit", str(spec), "--device", "cpu", "--jobs", str(jobs)]
    whole = subprocess.run([*command, "--out", str(tmp_path / "whole")], capture_output=True, text=True, check=False)
    assert whole.returncode == 0, whole.stderr
    lines = len(whole.stderr.splitlines())
    chance, out = random.Random(7), tmp_path / "killed"
    for _ in range(kills):
        with subprocess.Popen(
            [*command, "--out", str(out)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        ) as running:
            assert running.stderr is not None
            for _ in range(chance.randrange(1, lines)):
                if not running.stderr.readline():
                    break
            os.killpg(running.pid, signal.SIGKILL)  # the workers too: a machine that loses power spares nobody
        found = rows_of(out)
        assert len({json.dumps(row, sort_keys=True) for row in found}) == len(found), "a row is there twice"
    last = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr
    assert rows_of(out) == rows_of(tmp_path / "whole")


def test_sigkill_at_random_moments(tmp_path: Path) -> None:
    killed_runs(tmp_path, kills=2, jobs=1)


@pytest.mark.slow
def test_many_sigkills_at_random_moments(tmp_path: Path) -> None:
    killed_runs(tmp_path, kills=12, jobs=2)
