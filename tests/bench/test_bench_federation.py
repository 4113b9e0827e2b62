"""`fedleak bench federation` prints what the contract says, about the same work for both contenders."""

from __future__ import annotations

import pytest

from command_line import fedleak
from fedleak.bench import federation


def test_bench_federation_prints_ratios(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation, "WIDTHS", (2, 3))
    monkeypatch.setattr(federation, "PUBLIC", {"cpu": 8})
    monkeypatch.setattr(federation, "CLIENTS", {"cpu": 2})
    answer = fedleak(capsys, monkeypatch, "bench", "federation", "--device", "cpu", "--json")
    assert answer.code == 0, answer.err
    assert {"name", "device", "ratios", "seconds", "peak_memory", "floor_seconds"} <= set(answer.json)
    assert set(answer.json["ratios"]) == {"vs_eager", "vs_eager_1", "vs_jax"}
    assert answer.json["ratios"]["vs_jax"] is None
    assert "plain convolutions" in answer.json["conditions"]["floor"]
    assert set(answer.json["seconds"]) == {"stack_2", "one_by_one_2", "stack_1", "one_by_one_1"}
    assert answer.json["ratios"]["vs_eager"] == pytest.approx(
        answer.json["seconds"]["one_by_one_2"] / answer.json["seconds"]["stack_2"]
    )


def test_both_contenders_do_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation, "WIDTHS", (2, 3))
    monkeypatch.setattr(federation, "PUBLIC", {"cpu": 8})
    monkeypatch.setattr(federation, "CLIENTS", {"cpu": 3})
    work = federation._work("cpu")
    assert federation._together(work, "cpu")() == federation._one_after_the_other(work)() == 3 * (3 + 1)
    assert federation._together(work.few(1), "cpu")() == 4
