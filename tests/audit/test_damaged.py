"""A run folder that was damaged: the row says so without a path, and once it is mended the trial runs again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from small import SMALL

from fedleak.audit.rows import Row
from fedleak.audit.runner import run_audit
from fedleak.audit.spec import make_spec

TABLES = {**SMALL, "defenses": [], "attacks": SMALL["attacks"][:1]}


def run(out: Path) -> list[Row]:
    return run_audit(make_spec(TABLES), out, data_root=Path("nowhere"), jobs=1)


@pytest.mark.parametrize(
    ("kind", "file", "words"),
    [
        ("transcripts", "round-0001.safetensors", "round-0001.safetensors: 3 bytes, the manifest says"),
        ("transcripts", "manifest.json", "manifest.json: not readable as JSON"),
        ("truths", "truth.safetensors", "not readable"),
    ],
)
def test_what_cannot_be_read_is_a_failed_trial_until_it_is_made_again(
    tmp_path: Path, kind: str, file: str, words: str
) -> None:
    whole = run(tmp_path)
    (folder,) = (tmp_path / kind).iterdir()
    (folder / file).write_bytes(b"cut")
    shutil.rmtree(tmp_path / "trials")
    (row,) = [row for row in run(tmp_path) if row.where["attack"] != "none"]
    assert row.status == "failed"
    assert words in row.reason
    assert f"delete transcripts/{folder.name} and truths/{folder.name}" in row.reason
    assert str(tmp_path) not in row.line()
    for each in ("transcripts", "truths"):
        shutil.rmtree(tmp_path / each / folder.name)
    assert all(one.same_result_as(other) for one, other in zip(whole, run(tmp_path), strict=True))
