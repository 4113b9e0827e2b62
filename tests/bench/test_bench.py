"""`fedleak bench` prints what the contract says. How fast is for people to read, not for a test to assert."""

from __future__ import annotations

import pytest

from command_line import fedleak
from fedleak.bench import BENCHES, dlg
from fedleak.bench.measure import Result


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
    said = fedleak(capsys, monkeypatch, "bench", "dlg", "--device", "cpu").out
    assert "times faster" in said or "times slower" in said


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(2.0, "2.00 times faster"), (1.0, "1.00 times faster"), (0.5, "2.00 times slower"), (None, "not measured")],
)
def test_a_rival_that_is_faster_is_not_called_slower(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, ratio: float | None, words: str
) -> None:
    measured = Result("dlg", "cpu", {"vs_eager": ratio}, {}, 0, 1.0)
    monkeypatch.setitem(BENCHES, "dlg", lambda device: measured)
    assert f"vs_eager: {words}\n" in fedleak(capsys, monkeypatch, "bench", "dlg", "--device", "cpu").out


def test_an_unknown_bench_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    answer = fedleak(capsys, monkeypatch, "bench", "dgl")
    assert answer.code == 2
    assert "did you mean 'dlg'?" in answer.err
    assert "dlg" in fedleak(capsys, monkeypatch, "bench").out
