"""What a Flower server sends and gets, round by round, to a transcript.

Whatever goes wrong with the recording is said once and never disturbs the federation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fedleak.errors import FedleakError, RefusedError
from fedleak.integrations.flower.arrays import Layout, layout_of, weights_of
from fedleak.integrations.flower.disclosed import said_by_error, told_by_config, told_by_reply
from fedleak.integrations.flower.shapes import classes_in, input_shape_of
from fedleak.learning.quantised import QUANTISATION
from fedleak.transcript import TranscriptWriter
from fedleak.types import Message, ModelSpec, Normalisation, Round, Setup, Weights

__all__ = ["PROBLEMS", "Recorder"]

PROBLEMS = "problems.txt"
"""Beside the transcript: what could not be recorded, one line each."""

log = logging.getLogger("fedleak.flower")
shown = logging.getLogger("flwr")
"""Flower's own log, which `flwr run --stream` shows: what recording cost is said there."""


class Recorder:
    """What is known of the running round, and the transcript that it goes to. `seconds` is the time that took, `share`
    the largest part of a round, from sending out to the last reply written down, that it was."""

    def __init__(
        self,
        folder: Path,
        model: Callable[[], nn.Module] | None,
        input_shape: tuple[int, ...] | None,
        classes: int | None,
        normalisation: Normalisation | None,
        disclosed: Mapping[str, Any],
        sender: Callable[[Any], str] | None,
        quantisation: Callable[[Any], Mapping[str, Any]] | None = None,
    ) -> None:
        self.folder, self.model = folder, model
        self.layout: Layout | None = None if model is None else layout_of(model)
        self.input_shape, self.classes = input_shape, classes
        self.normalisation, self.disclosed, self.sender = normalisation or Normalisation(), disclosed, sender
        self.quantisation = quantisation
        self.problems: list[str] = []
        self.seconds = self.share = 0.0
        self._began = self._spent = 0.0
        self._writer: TranscriptWriter | None = None
        self._round = 0
        self._broadcast: Weights | None = None
        self._told: dict[int, dict[str, Any]] = {}
        self._record: Any = None
        self._other: set[int] = set()

    def sent(self, index: int, arrays: Any, messages: list[Any]) -> None:
        """The server sends out a round."""
        self._began, self._spent = time.monotonic(), self.seconds
        self._watched(index, lambda: self._sent(index, arrays, messages))

    def received(self, index: int, replies: list[Any], key: str) -> None:
        """The replies of a round are there: write it down."""
        self._watched(index, lambda: self._received(index, replies, key))
        cost, whole = self.seconds - self._spent, max(time.monotonic() - self._began, 1e-9)
        self.share = max(self.share, cost / whole)
        shown.info("fedleak: recording took %.1f ms of round %d, %.3f %% of it", 1e3 * cost, index, 100 * cost / whole)

    def _watched(self, index: int, work: Callable[[], list[str]]) -> None:
        """Problems of one round become one message; none of them reaches the federation."""
        start = time.monotonic()
        try:
            problems = work()
        except Exception as problem:  # not ours alone: a strategy's messages, a writer's disk
            problems = [f"nothing was recorded: {_why(problem)}"]
        if problems:
            self._say(f"round {index}: {'; '.join(problems)}")
        self.seconds += time.monotonic() - start

    def _say(self, text: str) -> None:
        self.problems.append(text)
        log.warning("fedleak recording %s: %s", self.folder, text)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / PROBLEMS).open("a", encoding="utf-8") as file:
                file.write(" ".join(text.split()) + "\n")
        except OSError:
            pass  # the disk is the problem that was just said

    def _sent(self, index: int, arrays: Any, messages: list[Any]) -> list[str]:
        self._round, self._told, self._other, self._broadcast = index, {}, set(), None
        # What is sent counts, and that may be other arrays than the strategy was given (noise, a personal model).
        records = {message.metadata.dst_node_id: _arrays(message) for message in messages}
        self._record = next(iter(records.values()), None) or arrays
        problems = [] if messages else ["no client was sampled"]
        try:
            self._broadcast = weights_of(self._record, self.layout)
        except RefusedError as problem:
            if self.layout is None:
                raise
            # Another model than was named: the arrays themselves are still worth keeping.
            self.layout, self.model = None, None
            self._broadcast = weights_of(self._record)
            problems.append(f"the broadcast: {problem}; recorded as it is, without the model")
        for message in messages:
            node = message.metadata.dst_node_id
            self._told[node] = told_by_config(message)
            if not _same(records[node], self._record):
                self._other.add(node)
        return problems

    def _received(self, index: int, replies: list[Any], key: str) -> list[str]:
        if index != self._round:
            return ["what was broadcast is not known, so the replies mean nothing"]
        if self._broadcast is None:
            return []  # said when it was sent
        messages: dict[str, Message] = {}
        problems: list[str] = []
        for reply in replies:
            try:
                message = self._message(reply, key)
                if message.sender in messages:
                    raise RefusedError("replied twice; the first reply counts")
                messages[message.sender] = message
            except Exception as problem:  # `sender` and `quantisation` are the user's: they may raise anything
                problems.append(f"node {reply.metadata.src_node_id} left out: {_why(problem)}")
        silent = len(self._told) - len(replies)
        if silent > 0:
            problems.append(f"{silent} of {len(self._told)} clients did not reply")
        if self._writer is None:
            self._writer = TranscriptWriter(self.folder, self._setup(self._broadcast))
        ordered = tuple(messages[name] for name in sorted(messages))  # replies come in the order of their arrival
        self._writer.append(Round(index, self._broadcast, ordered))
        return problems

    def _message(self, reply: Any, key: str) -> Message:
        node = reply.metadata.src_node_id
        if reply.has_error():
            raise RefusedError(f"replied with error {reply.error.code}: {said_by_error(reply)}")
        record = _arrays(reply)
        if record is None:
            raise RefusedError("replied without weights (no array record)")
        if node in self._other:
            raise RefusedError("was sent other arrays than the rest of the round; its update has no common start")
        weights = weights_of(record, self.layout)
        whole = [name for name, value in weights.tensors.items() if not value.is_floating_point()]
        told = {**self._told.get(node, {}), **told_by_reply(reply, key)}
        if whole and self.quantisation is None:
            raise RefusedError(
                f"its array {whole[0]!r} is {weights.tensors[whole[0]].dtype}: a quantised update, and nothing says of "
                "what scale; say it with record(..., quantisation=...), or record a strategy that sees it decoded"
            )
        if whole and self.quantisation is not None:
            told[QUANTISATION] = dict(self.quantisation(reply))
        return Message(self._name(reply), weights, told)

    def _name(self, reply: Any) -> str:
        if self.sender is not None:
            return str(self.sender(reply))
        for metrics in reply.content.metric_records.values():
            if "partition-id" in metrics:
                return f"client-{metrics['partition-id']}"
        return f"node-{reply.metadata.src_node_id}"

    def _setup(self, weights: Weights) -> Setup:
        shape = self.input_shape or input_shape_of(self.model, weights.tensors)
        if not shape:
            self._say("the size of the pictures is not known; attacks need record(..., input_shape=(C, H, W))")
        name = "unknown"
        if self.model is not None:
            name = f"{getattr(self.model, '__module__', 'user')}:{getattr(self.model, '__qualname__', 'model')}"
        return Setup(
            model=ModelSpec(name, factory=self.model),
            input_shape=tuple(shape),
            classes=self.classes or classes_in(weights.tensors),
            normalisation=self.normalisation,
            disclosed=dict(self.disclosed),
        )


def _why(problem: Exception) -> str:
    """In words: a KeyError alone says nothing but the key."""
    return str(problem) if isinstance(problem, FedleakError | OSError) else f"{type(problem).__name__}: {problem}"


def _arrays(message: Any) -> Any:
    """The one array record of a message; None where it has none."""
    records = [] if not message.has_content() else list(message.content.array_records.values())
    if len(records) > 1:
        raise RefusedError(f"has {len(records)} array records; one, with the weights, is understood")
    return records[0] if records else None


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if one is None or list(one) != list(other):
        return False
    return all(one[name].data == other[name].data for name in one)
