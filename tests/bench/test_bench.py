"""`fedleak bench` prints what the contract says. How fast is for people to read, not for a test to assert."""

from __future__ import annotations

import pytest

from command_line import fedleak
from fedleak.bench import dlg


def test_bench_dlg_prints_ratios(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlg, "VICTIMS", {"cpu": 2})
    monkeypatch.setattr(dlg, "OUTER", 1)
    answer = fedleak(capsys, monkeypatch, "bench", "dlg", "--device", "cpu", "--json")
    assert answer.code == 0, answer.err
    assert {"name", "device", "ratios", "seconds", "peak_memory", "floor_seconds"} <= set(answer.json)
    assert set(answer.json["ratios"]) == {"vs_eager", "vs_eager_1", "vs_jax"}
    assert answer.json["ratios"]["vs_jax"] is None
    assert all(answer.json["seconds"][name] > 0 for name in ("batch_2", "torch_lbfgs_2"))
    assert answer.json["floor_seconds"] > 0
    assert "times faster" in fedleak(capsys, monkeypatch, "bench", "dlg", "--device", "cpu").out


def test_an_unknown_bench_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    answer = fedleak(capsys, monkeypatch, "bench", "dgl")
    assert answer.code == 2
    assert "did you mean 'dlg'?" in answer.err
    assert "dlg" in fedleak(capsys, monkeypatch, "bench").out
