"""`fedleak reproduce dlm/table1 --scale smoke`: on MNIST where the data is, on faces where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import fedleak


@pytest.mark.slow
def test_table1_smoke(
    tmp_path: Path, real_data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = fedleak(
        capsys,
        monkeypatch,
        "reproduce",
        "dlm/table1",
        "--scale",
        "smoke",
        "--data",
        real_data,
        "--out",
        tmp_path,
        "--json",
    )
    assert answer.code == 0, answer.err
    cells = {(cell["where"]["attack"], cell["metric"]): cell for cell in answer.json["cells"]}
    assert cells["dlm_plus", "acc"]["published"] == 92
    assert cells["dlm_plus", "acc"]["ours"] >= 90
    assert cells["dlm_plus", "psnr"]["ours"] >= 40
    assert cells["dlg", "acc"]["ours"] > 0
    assert cells["dlm_plus", "lpips"]["ours"] < 1e-3
