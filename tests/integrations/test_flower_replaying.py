"""`replay(recording)`: a strategy runs again on recorded replies, without clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedleak[flower]'")

from flower_parts import LocalGrid, client_app, first, plain
from flwr.serverapp.strategy import FedAvg, FedMedian

import fedleak
from fedleak.errors import RefusedError
from fedleak.integrations.flower import first_arrays, record, replay
from fedleak.types import Transcript


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, Any]:
    strategy = record(FedAvg(fraction_evaluate=0.0), out=tmp_path / "r", model=plain)
    return tmp_path / "r", strategy.start(LocalGrid(client_app(plain)), first(plain), num_rounds=3)


def test_the_same_strategy_ends_where_it_ended(recorded: tuple[Path, Any]) -> None:
    folder, result = recorded
    again = FedAvg(fraction_evaluate=0.0).start(replay(folder), first_arrays(folder), num_rounds=3)
    ours, theirs = again.arrays.to_torch_state_dict(), result.arrays.to_torch_state_dict()
    assert set(ours) == set(theirs)
    for name in theirs:
        assert torch.allclose(ours[name].double(), theirs[name].double(), rtol=1e-6, atol=1e-7)


def test_another_strategy_does_its_own_arithmetic(recorded: tuple[Path, Any]) -> None:
    folder, _ = recorded
    got = FedMedian(fraction_evaluate=0.0).start(replay(folder), first_arrays(folder), num_rounds=3).arrays
    last = fedleak.load_transcript(folder).round(3).received
    stacked = torch.stack([m.payload.tensors["1.weight"] for m in last])  # type: ignore[union-attr]
    # The median of two is their mean.
    assert torch.allclose(got.to_torch_state_dict()["1.weight"], stacked.mean(dim=0))


def test_a_client_that_is_missing_in_a_round_does_not_reply(recorded: tuple[Path, Any]) -> None:
    seen = fedleak.load_transcript(recorded[0])
    thinned = Transcript(seen.setup, [replace(r, received=r.received[:1]) if r.index == 3 else r for r in seen.rounds])
    got = FedAvg(fraction_evaluate=0.0).start(replay(thinned), first_arrays(thinned), num_rounds=3).arrays
    alone = seen.round(3).received[0].payload.tensors["1.weight"]  # type: ignore[union-attr]
    assert torch.equal(got.to_torch_state_dict()["1.weight"], alone)


def test_a_recording_can_be_recorded_again(recorded: tuple[Path, Any], tmp_path: Path) -> None:
    strategy = record(FedAvg(fraction_evaluate=0.0), out=tmp_path / "again", model=plain)
    strategy.start(replay(recorded[0]), first_arrays(recorded[0]), num_rounds=3)
    one, two = fedleak.load_transcript(recorded[0]), fedleak.load_transcript(tmp_path / "again")
    for mine, theirs in zip(one.round(2).received, two.round(2).received, strict=True):
        assert torch.equal(mine.payload.tensors["3.bias"], theirs.payload.tensors["3.bias"])  # type: ignore[union-attr]


def test_an_empty_recording_has_nothing_to_replay(recorded: tuple[Path, Any]) -> None:
    seen = fedleak.load_transcript(recorded[0])
    with pytest.raises(RefusedError, match="nothing to replay"):
        replay(Transcript(seen.setup, []))
