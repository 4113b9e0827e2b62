"""Rows on disk: read back as they were written, and one message about anything that is no row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedleak.audit.rows import Row
from fedleak.audit.store import RunFolder
from fedleak.errors import RefusedError

ROW = Row(
    trial="0" * 24,
    where={"protocol": "fedavg", "attack": "dlm_plus", "client": "Zoë\x85\u2028"},
    scores={"psnr": [30.5]},
    n=1,
    status="ok",
    granted=("samples",),
)
PLAIN = json.loads(ROW.line())


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_rows([ROW, ROW])
    assert folder.rows() == [ROW, ROW]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (b"not json", "Expecting value"),
        (b"\xff\xfe", "can't decode byte 0xff"),
        (b"[1, 2]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (json.dumps({**PLAIN, "epsilon": 1}).encode(), "unknown fields: epsilon"),
        (json.dumps({k: v for k, v in PLAIN.items() if k not in ("n", "trial")}).encode(), "missing fields: trial, n"),
        (json.dumps({**PLAIN, "where": "fedavg"}).encode(), "where is no JSON object"),
        (json.dumps({**PLAIN, "scores": [30.5]}).encode(), "scores is no JSON object"),
    ],
)
def test_what_is_no_row_is_refused_with_its_place(tmp_path: Path, second: bytes, words: str) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.write_rows([ROW])
    folder.rows_file.write_bytes(folder.rows_file.read_bytes() + second + b"\n")
    with pytest.raises(RefusedError) as refused:
        folder.rows()
    assert str(refused.value).startswith("run/rows.jsonl line 2: not a row (")
    assert words in str(refused.value)
    assert str(refused.value).endswith("delete the file and run again")
