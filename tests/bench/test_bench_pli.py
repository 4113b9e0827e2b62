"""`fedleak bench pli` prints what the contract says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from command_line import fedleak
from fedleak.bench import pli


def test_bench_pli_prints_ratios(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(pli.SIZES["cpu"], width=0.01, clients=2, steps=2, examples=20)
    monkeypatch.setattr(pli, "SIZES", {"cpu": small})
    answer = fedleak(capsys, monkeypatch, "bench", "pli", "--device", "cpu", "--json")
    assert answer.code == 0, answer.err
    assert {"name", "device", "ratios", "seconds", "peak_memory", "floor_seconds"} <= set(answer.json)
    assert set(answer.json["ratios"]) == {"vs_eager", "vs_eager_1", "vs_jax"}
    assert answer.json["ratios"]["vs_jax"] is None
    assert all(answer.json["seconds"][name] > 0 for name in ("stack_2", "loop_2", "stack_1", "loop_1"))
    assert answer.json["floor_seconds"] > 0


def test_the_operations_of_a_step_are_those_that_torch_counts() -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    of = pli.InversionNetwork(80, (1, 32, 32), 0.0625)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        pli.plain_network(of, 0)(torch.zeros(pli.BATCH, 80, 1, 1))
    assert pli._operations(of) == pytest.approx(3 * counter.get_total_flops())
