"""The default audit as a newcomer runs it: the faces come back, the strong noise stops it, twice the same bits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedleak.audit.rows import MAY_DIFFER


def audit(out: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "fedleak", "audit", "--device", "cpu", "--quiet", "--json", "--out", str(out)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    rows = json.loads(ended.stdout)["rows"]
    return [{key: value for key, value in row.items() if key not in MAY_DIFFER} for row in rows]


@pytest.mark.slow
def test_the_default_audit_twice(tmp_path: Path) -> None:
    first, second = audit(tmp_path / "one"), audit(tmp_path / "two")
    assert first == second, "the same seed gives the same bits"
    assert (tmp_path / "one" / "report.html").read_bytes() == (tmp_path / "two" / "report.html").read_bytes()

    def recovered(**where: str) -> float:
        return sum(sum(r["scores"]["recovered"]) for r in first if where.items() <= r["where"].items())

    for protocol in ("fedsgd", "fedavg"):
        assert recovered(protocol=protocol, attack="dlm_plus", defense="none") >= 9
        assert recovered(protocol=protocol, attack="dlm_plus", defense="gaussian(sigma=0.1)") == 0
    assert {row["status"] for row in first} == {"ok"}
    accuracy = {
        row["where"]["protocol"]: sum(row["scores"]["utility"]) / row["n"]
        for row in first
        if row["where"]["attack"] == "none" and row["where"]["defense"] == "none"
    }
    assert min(accuracy.values()) > 0.7, "a federation that learned nothing prices no defense"
