"""Clients that fail, refuse or send something else: named in one message, and the rest stays usable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedleak[flower]'")

from flower_parts import LocalGrid, client_app, first, net, usual
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from torch import nn

import fedleak
from fedleak.errors import RefusedError
from fedleak.integrations.flower import record
from fedleak.integrations.flower.recorder import PROBLEMS


class Tolerant(FedAvg):
    """Skips replies that it cannot use, as a strategy in production does."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        same = [r for r in replies if r.has_content() and "arrays" in r.content]
        names = set(first())
        return super().aggregate_train(server_round, [r for r in same if set(r.content["arrays"]) == names])


class Failing(LocalGrid):
    """The first node replies with an error in round 2."""

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Any]:
        sent = list(messages)
        bad = [m for m in sent if m.metadata.dst_node_id == 101 and m.content["config"]["server-round"] == 2]
        good = super().send_and_receive([m for m in sent if m not in bad])
        return [*good, *(Message(Error(2, "Traceback\n  ...\nValueError: out of disk"), reply_to=m) for m in bad)]


def recorded(out: Path, *, grid: Any = None, app: Any = None, strategy: Any = None, **given: Any) -> Any:
    strategy = record(strategy or Tolerant(fraction_evaluate=0.0), out=out, **{"model": net, **given})
    strategy.start(grid or LocalGrid(app or client_app()), first(), num_rounds=3)
    return strategy.fedleak_recorder


def senders(out: Path) -> list[list[str]]:
    return [[m.sender for m in r.received] for r in fedleak.load_transcript(out).rounds]


def test_an_error_reply(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = recorded(tmp_path / "r", grid=Failing(client_app()))
    assert senders(tmp_path / "r") == [["node-101", "node-102"], ["node-102"], ["node-101", "node-102"]]
    assert recorder.problems == ["round 2: node 101 left out: replied with error 2: ValueError: out of disk"]
    assert (tmp_path / "r" / PROBLEMS).read_text() == recorder.problems[0] + "\n"
    assert [r.getMessage() for r in caplog.records if r.name == "fedleak.flower"] == [
        f"fedleak recording {tmp_path / 'r'}: {recorder.problems[0]}"
    ]


def test_a_reply_without_weights(tmp_path: Path) -> None:
    def silent(module: nn.Module, samples: int, partition: int, index: int) -> RecordDict:
        if (partition, index) == (1, 1):
            return RecordDict({"metrics": MetricRecord({"num-examples": samples})})
        return usual(module, samples)

    recorder = recorded(tmp_path / "r", app=client_app(content=silent))
    assert senders(tmp_path / "r") == [["node-101"], ["node-101", "node-102"], ["node-101", "node-102"]]
    assert recorder.problems == ["round 1: node 102 left out: replied without weights (no array record)"]


def test_a_renamed_layer(tmp_path: Path) -> None:
    def renamed(module: nn.Module, samples: int, partition: int, index: int) -> RecordDict:
        sent = usual(module, samples)
        if (partition, index) == (0, 2):
            state = {f"backbone.{name}": value for name, value in module.state_dict().items()}
            sent["arrays"] = ArrayRecord(state)
        return sent

    recorder = recorded(tmp_path / "r", app=client_app(content=renamed))
    assert [len(r) for r in senders(tmp_path / "r")] == [2, 1, 2]
    (problem,) = recorder.problems
    assert "node 101 left out" in problem
    assert "missing: 1.weight" in problem
    assert "not expected: backbone.1.weight" in problem


def test_a_strategy_that_samples_nobody(tmp_path: Path) -> None:
    recorder = recorded(tmp_path / "r", strategy=FedAvg(fraction_train=0.0, fraction_evaluate=0.0))
    assert senders(tmp_path / "r") == [[], [], []]
    assert recorder.problems == [f"round {n}: no client was sampled" for n in (1, 2, 3)]


def test_a_client_that_never_replies(tmp_path: Path) -> None:
    class Losing(LocalGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Any]:
            return [r for r in super().send_and_receive(messages) if r.metadata.src_node_id == 102]

    recorder = recorded(tmp_path / "r", grid=Losing(client_app()))
    assert senders(tmp_path / "r") == [["node-102"]] * 3
    assert recorder.problems[0] == "round 1: 1 of 2 clients did not reply"


def test_another_model_than_was_named(tmp_path: Path) -> None:
    """The arrays are kept; an attack with the wrong network says so at once, with the right one it goes on."""
    recorder = recorded(tmp_path / "r", model=lambda: nn.Linear(16, 3))
    assert [len(r) for r in senders(tmp_path / "r")] == [2, 2, 2]
    (problem,) = recorder.problems
    assert "not those of the model" in problem
    seen = fedleak.load_transcript(tmp_path / "r")
    with pytest.raises(RefusedError, match="recorded from another network than Linear"):
        fedleak.attack(seen, "dlm_plus", model=lambda: nn.Linear(16, 3), steps=1, device="cpu")
    finding = fedleak.attack(seen, "dlm_plus", model=net, steps=1, restarts=0, device="cpu")
    assert {victim.status for victim in finding.victims} == {"ok"}


def test_personal_models_have_no_common_start(tmp_path: Path) -> None:
    class Personal(FedAvg):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            messages = list(super().configure_train(server_round, arrays, config, grid))
            content = messages[1].content
            own = RecordDict({"arrays": first(seed=5), "config": content["config"]})
            messages[1] = Message(own, dst_node_id=messages[1].metadata.dst_node_id, message_type="train")
            return messages

    recorder = recorded(tmp_path / "r", strategy=Personal(fraction_evaluate=0.0))
    assert [len(r) for r in senders(tmp_path / "r")] == [1, 1, 1]
    assert "was sent other arrays" in recorder.problems[0]


def test_a_full_disk_does_not_stop_the_federation(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("a file where the folder should be")
    strategy = record(FedAvg(fraction_evaluate=0.0), out=tmp_path / "r", model=net)
    result = strategy.start(LocalGrid(client_app()), first(), num_rounds=2)
    assert torch.isfinite(result.arrays.to_torch_state_dict()["1.weight"]).all()
    assert all("nothing was recorded" in problem for problem in strategy.fedleak_recorder.problems)


def whole_numbers(module: nn.Module, samples: int, partition: int, index: int) -> RecordDict:
    """The trained weights in whole numbers of 1/1024, with the scale in the metrics."""
    state = {
        n: v if v.ndim == 0 else (v.detach() * 1024).round().to(torch.int16) for n, v in module.state_dict().items()
    }
    metrics = MetricRecord({"num-examples": samples, "scale": 1 / 1024})
    return RecordDict({"arrays": ArrayRecord(state), "metrics": metrics})


class Stubborn(FedAvg):
    """Keeps its model: nothing that it gets can be averaged."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        list(replies)
        return first(), None


def test_a_quantised_reply_needs_somebody_to_say_its_scale(tmp_path: Path) -> None:
    strategy = Stubborn(fraction_evaluate=0.0)
    recorder = recorded(tmp_path / "r", app=client_app(content=whole_numbers), strategy=strategy)
    assert senders(tmp_path / "r") == [[], [], []]
    assert "a quantised update, and nothing says of what scale" in recorder.problems[0]

    def told(reply: Any) -> dict[str, Any]:
        return {"scale": reply.content["metrics"]["scale"]}

    recorded(tmp_path / "q", app=client_app(content=whole_numbers), strategy=strategy, quantisation=told)
    seen = fedleak.load_transcript(tmp_path / "q")
    message = seen.round(1).received[0]
    assert message.disclosed["quantisation"] == {"scale": 1 / 1024}
    finding = fedleak.attack(seen, "dlm_plus", model=net, steps=1, restarts=0, device="cpu", input_shape=(1, 4, 4))
    assert [victim.status for victim in finding.victims] == ["ok", "ok"]
