"""A recording instead of clients: any strategy can be run again on what was recorded.

    FedMedian().start(replay("recording"), first_arrays("recording"), num_rounds=3)

The replies are the recorded ones whatever the strategy sends out: round by round, the server's arithmetic is what is
tried, not what the clients would have answered to another model.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedleak.errors import RefusedError
from fedleak.integrations.flower.arrays import array_record
from fedleak.integrations.flower.installed import flower, identify
from fedleak.transcript import load_transcript
from fedleak.types import Message, Round, Transcript, Weights

__all__ = ["first_arrays", "replay"]


def replay(recording: Transcript | Path | str) -> Any:
    """A Flower Grid whose nodes are the recorded clients.

    A client that is not in a round of the recording does not reply in it. Behind the last recorded round nobody does.

    Sees: the transcript. Needs: flwr >= 1.24. Guarantees: no process, no network; the same replies every time.
    """
    transcript = _opened(recording)
    senders = sorted({message.sender for seen in transcript.rounds for message in seen.received})
    if not senders:
        raise RefusedError("recording: no client sent anything in it, so there is nothing to replay")
    base = flower("flwr.serverapp").Grid
    identify()
    return type("ReplayGrid", (_Replay, base), {})(transcript, senders)


def first_arrays(recording: Transcript | Path | str, round_index: int = 1) -> Any:
    """The ArrayRecord that was broadcast in a round: what `Strategy.start` wants as its initial arrays."""
    broadcast = _opened(recording).round(round_index).broadcast
    if not isinstance(broadcast, Weights):
        raise RefusedError(f"round={round_index}: no weights were broadcast in it")
    return array_record({**broadcast.tensors, **broadcast.buffers})


def _opened(recording: Transcript | Path | str) -> Transcript:
    return recording if isinstance(recording, Transcript) else load_transcript(recording)


class _Replay:
    """The methods of a Grid. Made without flwr, joined with its base class by `replay`."""

    def __init__(self, transcript: Transcript, senders: list[str]) -> None:
        self.transcript = transcript
        self.nodes = dict(enumerate(senders, start=1))
        self._run: Any = None
        self._waiting: dict[str, Any] = {}
        self._asked = 0

    def set_run(self, run: Any) -> None:
        self._run = run

    @property
    def run(self) -> Any:
        return self._run

    def create_message(
        self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Any:
        message = flower().Message
        return message(content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        names = []
        for message in messages:
            self._asked += 1
            names.append(str(self._asked))
            self._waiting[names[-1]] = message
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        asked = [self._waiting.pop(name) for name in list(message_ids) if name in self._waiting]
        return [reply for reply in map(self._reply, asked) if reply is not None]

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        return self.pull_messages(self.push_messages(messages))

    def _reply(self, message: Any) -> Any:
        if not str(message.metadata.message_type).startswith("train"):
            return None  # nobody recorded evaluations
        seen = self._recorded(_asked_round(message))
        sender = self.nodes[message.metadata.dst_node_id]
        found = next((m for m in seen.received if m.sender == sender), None) if seen else None
        return None if found is None else _as_reply(found, message)

    def _recorded(self, index: int) -> Round | None:
        return next((seen for seen in self.transcript.rounds if seen.index == index), None)


def _asked_round(message: Any) -> int:
    for config in message.content.config_records.values():
        if "server-round" in config:
            return int(config["server-round"])
    group = str(message.metadata.group_id)
    if not group.isdigit():
        raise RefusedError("replay: the strategy does not say which round it asks for (config 'server-round')")
    return int(group)


def _as_reply(found: Message, message: Any) -> Any:
    app = flower()
    if not isinstance(found.payload, Weights):
        raise RefusedError(f"replay: {found.sender} sent {type(found.payload).__name__.lower()}, not weights")
    content = app.RecordDict(
        {
            "arrays": array_record({**found.payload.tensors, **found.payload.buffers}),
            # A client that did not say how many examples it has counts like any other.
            "metrics": app.MetricRecord({"num-examples": int(found.disclosed.get("samples", 1))}),
        }
    )
    return app.Message(content, reply_to=message)
