"""`record(strategy, out=...)`: what is written, and that nothing else changes."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedleak[flower]'")

from flower_parts import LocalGrid, client_app, config, first, net, plain, usual
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
)
from torch import nn

import fedleak
from command_line import fedleak as command
from fedleak.errors import RefusedError
from fedleak.integrations.flower import record
from fedleak.integrations.flower.recorder import PROBLEMS
from fedleak.types import Weights


def run(strategy: Any, app: Any = None, rounds: int = 2, start: Any = None) -> Any:
    given = config(learning_rate=0.2, local_epochs=1, batch_size=3)
    return strategy.start(
        LocalGrid(app or client_app()), start if start is not None else first(), num_rounds=rounds, train_config=given
    )


def averaging(**settings: Any) -> FedAvg:
    return FedAvg(fraction_evaluate=0.0, **settings)


def equal(one: Any, other: Any) -> bool:
    return list(one) == list(other) and all(one[name].data == other[name].data for name in one)


def test_every_round_is_written_bit_for_bit(tmp_path: Path) -> None:
    start = first()
    run(record(averaging(), out=tmp_path / "r", model=net), start=start)
    seen = fedleak.load_transcript(tmp_path / "r")
    assert [r.index for r in seen.rounds] == [1, 2]
    opening, state = seen.rounds[0].broadcast, start.to_torch_state_dict()
    assert isinstance(opening, Weights)
    assert list(opening.tensors) == [name for name, _ in net().named_parameters()]
    assert list(opening.buffers) == ["2.running_mean", "2.running_var", "2.num_batches_tracked"]
    assert all(torch.equal(value, state[name]) for name, value in {**opening.tensors, **opening.buffers}.items())
    assert [m.sender for m in seen.rounds[0].received] == ["node-101", "node-102"], "sorted, not by arrival"
    for number, message in enumerate(seen.rounds[0].received):
        assert message.disclosed == {"samples": 3 + number, "lr": 0.2, "epochs": 1, "batch_size": 3}
        assert isinstance(message.payload, Weights)
        assert int(message.payload.buffers["2.num_batches_tracked"]) == 1
    assert seen.setup.input_shape == (1, 4, 4), "16 numbers make a 4x4 picture"
    assert seen.setup.classes == 3
    assert not (tmp_path / "r" / PROBLEMS).exists()


@pytest.mark.parametrize(
    "make",
    [
        averaging,
        lambda: FedMedian(fraction_evaluate=0.0),
        lambda: FedAdam(fraction_evaluate=0.0),
        lambda: FedTrimmedAvg(fraction_evaluate=0.0),
    ],
    ids=["FedAvg", "FedMedian", "FedAdam", "FedTrimmedAvg"],
)
def test_a_recorded_strategy_does_what_it_did(make: Any, tmp_path: Path) -> None:
    bare = run(make(), client_app(plain), start=first(plain))
    strategy = make()
    recorded = record(strategy, out=tmp_path / "r", model=plain)
    assert isinstance(recorded, type(strategy))
    assert type(strategy) is not type(recorded), "the strategy that was given is not changed"
    assert equal(run(recorded, client_app(plain), start=first(plain)).arrays, bare.arrays)
    assert len(fedleak.load_transcript(tmp_path / "r").rounds) == 2


def test_a_strategy_around_a_strategy_is_recorded_before_it_clips(tmp_path: Path) -> None:
    inner = averaging()
    outer = DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 1e-6, 2)
    run(record(outer, out=tmp_path / "r", model=plain), client_app(plain), rounds=1, start=first(plain))
    seen = fedleak.load_transcript(tmp_path / "r").rounds[0]
    assert isinstance(seen.broadcast, Weights)
    sent = seen.received[0].payload.tensors["1.weight"]  # type: ignore[union-attr]
    assert float((sent - seen.broadcast.tensors["1.weight"]).norm()) > 1e-3, "the server saw the update unclipped"


def test_without_a_model_buffers_are_told_by_their_names(tmp_path: Path) -> None:
    run(record(averaging(), tmp_path / "r"), rounds=1)
    opening = fedleak.load_transcript(tmp_path / "r").rounds[0].broadcast
    assert isinstance(opening, Weights)
    assert list(opening.buffers) == ["2.running_mean", "2.running_var", "2.num_batches_tracked"]
    assert list(opening.tensors) == ["1.weight", "1.bias", "2.weight", "2.bias", "4.weight", "4.bias"]


def test_what_recording_costs_is_said_in_flowers_own_log(tmp_path: Path) -> None:
    """`flwr run --stream` shows it; examples/flower_fedavg/audit.py reads the share of a real round off it."""
    strategy, log = record(averaging(), out=tmp_path / "r", model=net), logging.getLogger("flwr")
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda entry: lines.append(entry.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        run(strategy)
    finally:
        log.removeHandler(handler)
    said = [line for line in lines if line.startswith("fedleak: recording took")]
    found = [re.fullmatch(r"fedleak: recording took (\S+) ms of round (\d), (\S+) % of it", line) for line in said]
    assert [one and one[2] for one in found] == ["1", "2"]
    shares = [float(one[3]) / 100 for one in found if one]
    assert strategy.fedleak_recorder.share == pytest.approx(max(shares), abs=1e-4)  # type: ignore[attr-defined]
    assert 0 < min(shares) <= max(shares) < 1


def test_half_precision_stays_half_precision(tmp_path: Path) -> None:
    def halves(module: nn.Module, samples: int, partition: int, index: int) -> RecordDict:
        sent = usual(module, samples)
        return RecordDict({"arrays": ArrayRecord(module.half().state_dict()), "metrics": sent["metrics"]})

    run(record(averaging(), out=tmp_path / "r", model=net), client_app(content=halves), rounds=1)
    sent = fedleak.load_transcript(tmp_path / "r").rounds[0].received[0].payload
    assert isinstance(sent, Weights)
    assert {value.dtype for value in sent.tensors.values()} == {torch.float16}


def test_arrays_without_names_get_the_models(tmp_path: Path) -> None:
    """Older apps send a list of arrays, which Flower calls "0", "1", ..."""

    def numbered(state: dict[str, torch.Tensor]) -> ArrayRecord:
        return ArrayRecord({str(number): value for number, value in enumerate(state.values())})

    app = client_app(
        make=lambda: Unnamed(),
        content=lambda module, samples, partition, index: RecordDict(
            {"arrays": numbered(module.inner.state_dict()), "metrics": MetricRecord({"num-examples": samples})}
        ),
    )
    run(record(averaging(), out=tmp_path / "r", model=net), app, rounds=1, start=numbered(net().state_dict()))
    seen = fedleak.load_transcript(tmp_path / "r").rounds[0]
    names = [name for name, _ in net().named_parameters()]
    assert isinstance(seen.broadcast, Weights)
    assert list(seen.broadcast.tensors) == names
    assert [list(m.payload.tensors) for m in seen.received] == [names, names]  # type: ignore[union-attr]


class Unnamed(nn.Module):
    """Loads a state without names by position."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def load_state_dict(self, state: Any, *rest: Any, **more: Any) -> Any:
        return self.inner.load_state_dict(dict(zip(self.inner.state_dict(), state.values(), strict=True)))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs)


def test_a_kill_leaves_the_finished_rounds_readable(tmp_path: Path) -> None:
    code = """
import os, sys
sys.path.insert(0, sys.argv[2])
from flower_parts import *
from flwr.serverapp.strategy import FedAvg
from fedleak.integrations.flower import record
def dies(module, samples, partition, index):
    if index == 3:
        os._exit(9)
    return usual(module, samples)
strategy = record(FedAvg(fraction_evaluate=0.0), out=sys.argv[1], model=net)
strategy.start(LocalGrid(client_app(content=dies)), first(), num_rounds=5)
"""
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "r"), here], capture_output=True, check=False)
    assert done.returncode == 9, done.stderr.decode()
    assert [len(r.received) for r in fedleak.load_transcript(tmp_path / "r").rounds] == [2, 2]


def test_a_recording_is_never_written_over(tmp_path: Path) -> None:
    run(record(averaging(), out=tmp_path / "r"), rounds=1)
    with pytest.raises(RefusedError, match="there is a recording already"):
        record(averaging(), out=tmp_path / "r")


def test_what_is_no_strategy_of_the_message_api_is_refused(tmp_path: Path) -> None:
    from flwr.server.strategy import FedAvg as OldFedAvg

    with pytest.raises(RefusedError, match=r"flwr\.serverapp\.strategy"):
        record(OldFedAvg(), out=tmp_path / "r")
    with pytest.raises(RefusedError, match="configure_train"):
        record(object(), out=tmp_path / "r")


def test_the_command_line_attacks_a_recording_with_the_apps_own_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(record(averaging(), out=tmp_path / "r", model=plain), client_app(plain), rounds=1, start=first(plain))
    capsys.readouterr()
    asked = ("attack", str(tmp_path / "r"), "--attack", "dlm_plus", "--set", "steps=2", "--set", "restarts=0")
    more = ("--device", "cpu", "--out", str(tmp_path / "found"), "--json", "--quiet")
    refused = command(capsys, monkeypatch, *asked, *more, "--model", "flower_parts:plain")
    assert refused.code == 2
    assert "--allow-code" in refused.err
    answer = command(capsys, monkeypatch, *asked, *more, "--model", "flower_parts:plain", "--allow-code")
    assert answer.code == 0, answer.err
    rows = json.loads(answer.out)["rows"]
    assert [(row["where"]["client"], row["n"], row["status"]) for row in rows] == [
        ("node-101", 3, "ok"),
        ("node-102", 4, "ok"),
    ]
    assert all(row["scores"] == {} for row in rows), "no truth, no score"
