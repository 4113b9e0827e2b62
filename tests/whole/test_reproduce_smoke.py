"""The smoke scale of a table of each kind of update: on MNIST where the data is, on faces where it is not."""

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


@pytest.mark.slow
def test_simulating_a_client_shows_at_smoke_scale(
    tmp_path: Path, real_data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """2.6 dB and 28 points on this seed. With the settings before, the points differed by twenty between machines and
    versions of the engine: so decibels are asserted, and of the points only who is ahead."""
    words = ["reproduce", "fedavg_leakage/table1", "--scale", "smoke", "--only", "method=prior", "--only"]
    words += ["method=fedsgd", "--jobs", "1", "--data", str(real_data), "--out", str(tmp_path), "--json", "--quiet"]
    answer = fedleak(capsys, monkeypatch, *words)
    assert answer.code == 0, answer.err
    cells = {(cell["where"]["method"], cell["metric"]): cell["ours"] for cell in answer.json["cells"]}
    assert cells["prior", "psnr"] > cells["fedsgd", "psnr"] + 1
    assert cells["prior", "recovered_pct"] > cells["fedsgd", "recovered_pct"]
