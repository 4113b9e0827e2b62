"""The recorder without Flower: whatever goes wrong with a recording, the federation goes on and one line says it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedleak import load_transcript
from fedleak.integrations.flower import record


class Array:
    """What a record holds of one tensor."""

    def __init__(self, values: list[float]) -> None:
        self._values = np.array(values, dtype=np.float32)
        self.data = self._values.tobytes()

    def numpy(self) -> Any:
        return self._values


def message(node: int, arrays: Any) -> Any:
    content = SimpleNamespace(array_records={"arrays": arrays}, config_records={}, metric_records={})
    about = SimpleNamespace(src_node_id=node, dst_node_id=node)
    return SimpleNamespace(metadata=about, content=content, has_content=lambda: True, has_error=lambda: False)


class Strategy:
    """Sends the same arrays to two nodes and counts what comes back."""

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> list[Any]:
        return [message(node, arrays) for node in (101, 102)]

    def aggregate_train(self, server_round: int, replies: Any) -> int:
        return len(list(replies))


def one_round(strategy: Any, index: int, arrays: Any, replies: list[Any]) -> int:
    strategy.configure_train(index, arrays, None, None)
    found: int = strategy.aggregate_train(index, replies)
    return found


def test_a_name_that_cannot_be_told_costs_that_reply_alone(tmp_path: Path) -> None:
    names = {101: "anna"}
    strategy: Any = record(Strategy(), tmp_path / "r", sender=lambda reply: names[reply.metadata.src_node_id])
    replies = [message(node, {"w": Array([float(node)])}) for node in (101, 102)]
    assert one_round(strategy, 1, {"w": Array([0.0])}, replies) == 2
    assert [[m.sender for m in seen.received] for seen in load_transcript(tmp_path / "r").rounds] == [["anna"]]
    assert strategy.fedleak_recorder.problems[-1] == "round 1: node 102 left out: KeyError: 102"


def test_arrays_of_another_make_cost_the_recording_and_not_the_round(tmp_path: Path) -> None:
    strategy: Any = record(Strategy(), tmp_path / "r")
    assert one_round(strategy, 1, {"w": object()}, []) == 0
    (problem,) = strategy.fedleak_recorder.problems
    assert problem.startswith("round 1: nothing was recorded: AttributeError: ")
