"""FedMD and DS-FL on Flower's Message API: predictions on a public set cross the wire, no weights.

Server, inside a ServerApp:      exchange(grid, public=PublicSet(images), rounds=5, out="recording", ...)
Client, inside @app.train():     asked = read_request(message)                      # which examples, what consensus
                                 return reply_predictions(message, values, samples=len(mine))

Each round the server sends the consensus of the round before and asks for predictions on the public examples `index`.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedleak.errors import FedleakError, RefusedError
from fedleak.integrations.flower.arrays import array_record, tensors_of
from fedleak.integrations.flower.disclosed import said_by_error, told_by_reply
from fedleak.integrations.flower.installed import flower
from fedleak.seeding import Seeds
from fedleak.transcript import TranscriptWriter
from fedleak.types import Message, ModelSpec, Normalisation, Predictions, PublicSet, Round, Setup

__all__ = ["Request", "asked_predictions", "consensus", "exchange", "read_request", "reply_predictions"]

Scale = Literal["logits", "probabilities"]
CONSENSUS, ANSWER = "consensus", "predictions"
log = logging.getLogger("fedleak.flower")


@dataclass(frozen=True, eq=False)
class Request:
    """What a client is asked for: predictions on the public examples `index`, after learning from `consensus`."""

    round: int
    index: Tensor
    consensus: Predictions | None
    scale: Scale = "logits"


def exchange(
    grid: Any,
    *,
    public: PublicSet,
    classes: int,
    rounds: int,
    clients: int = 2,
    protocol: Literal["fedmd", "dsfl"] = "fedmd",
    temperature: float = 0.1,
    examples: int | None = None,
    out: Path | str | None = None,
    normalisation: Normalisation | None = None,
    seed: int = 0,
    timeout: float = 3600.0,
) -> Predictions:
    """Run all rounds and return the last consensus; with `out`, record them as a transcript while they run.

    "fedmd" averages logits; "dsfl" averages probabilities and sharpens the mean with `temperature` (its entropy
    reduction aggregation). `examples` of the public set are drawn anew for every round; None takes all of them.

    Sees: every client's predictions. Needs: flwr >= 1.24, `clients` nodes. Guarantees: after a kill every finished
    round is readable; a client that fails is left out of its round and named.
    """
    app, scale = flower(), "logits" if protocol == "fedmd" else "probabilities"
    setup = Setup(
        ModelSpec("unknown"),
        tuple(public.inputs.shape[1:]),
        classes,
        normalisation=normalisation or Normalisation(),
        public=public,
        disclosed={"protocol": protocol},
    )
    writer = None if out is None else TranscriptWriter(out, setup)
    nodes = _wait_for(grid, clients, timeout)
    agreed: Predictions | None = None
    for number in range(1, rounds + 1):
        index = _draw(len(public.inputs), examples, Seeds(seed).generator("public", number))
        content = {"config": app.ConfigRecord({"server-round": number, "public-index": index.tolist(), "scale": scale})}
        if agreed is not None:
            content[CONSENSUS] = array_record({"values": agreed.values, "index": agreed.index})
        asked = [
            app.Message(app.RecordDict(content), dst_node_id=node, message_type="train", group_id=str(number))
            for node in nodes
        ]
        received = _read(number, grid.send_and_receive(asked, timeout=timeout), index, scale, classes)
        if writer is not None:
            writer.append(Round(number, agreed, received))
        if received:
            agreed = consensus([m.payload for m in received], protocol, temperature)  # type: ignore[misc]
        log.info("fedleak %s: round %d of %d, %d replies", protocol, number, rounds, len(received))
    if agreed is None:
        raise RefusedError(f"{protocol}: no client replied in any of the {rounds} rounds")
    return agreed


def consensus(sent: list[Predictions], protocol: str = "fedmd", temperature: float = 0.1) -> Predictions:
    """The mean of all predictions on each example, for DS-FL sharpened: softmax(mean / temperature).

    A client may leave examples out (cross_domain); those that nobody answered about have no consensus.
    """
    index = sent[0].index
    if all(torch.equal(one.index, index) for one in sent):
        mean = torch.stack([one.values for one in sent]).mean(dim=0)
    else:
        index = torch.unique(torch.cat([one.index for one in sent]))
        total, answers = sent[0].values.new_zeros(len(index), sent[0].values.shape[-1]), torch.zeros(len(index), 1)
        for one in sent:
            at = torch.searchsorted(index, one.index)
            total[at] += one.values
            answers[at] += 1
        mean = total / answers
    if protocol == "dsfl":
        mean = torch.softmax(mean / temperature, dim=-1)
    return Predictions(mean, sent[0].scale, index)


def read_request(message: Any) -> Request:
    """On the client: what a message of `exchange` asks for."""
    config = message.content["config"]
    known = None
    if CONSENSUS in message.content:
        found = tensors_of(message.content[CONSENSUS])
        known = Predictions(found["values"], config["scale"], found["index"])
    index = torch.tensor(list(config["public-index"]))
    return Request(int(config["server-round"]), index, known, config["scale"])


def asked_predictions(message: Any, key: str) -> Request | None:
    """What was asked for, if the array record `key` of a reply to this message holds the predictions."""
    if key != ANSWER or "public-index" not in message.content.config_records.get("config", {}):
        return None
    return read_request(message)


def reply_predictions(message: Any, values: Tensor, *, samples: int) -> Any:
    """On the client: the answer to a message of `exchange`; logits for FedMD, probabilities for DS-FL."""
    app = flower()
    content = app.RecordDict(
        {ANSWER: array_record({"values": values}), "metrics": app.MetricRecord({"num-examples": samples})}
    )
    return app.Message(content, reply_to=message)


def _draw(count: int, wanted: int | None, rng: torch.Generator) -> Tensor:
    if wanted is None or wanted >= count:
        return torch.arange(count)
    return torch.randperm(count, generator=rng)[:wanted].sort().values


def _wait_for(grid: Any, clients: int, timeout: float) -> list[int]:
    deadline = time.monotonic() + timeout
    while len(nodes := sorted(grid.get_node_ids())) < clients:
        if time.monotonic() > deadline:
            raise RefusedError(f"clients={clients}: only {len(nodes)} nodes are there after {timeout:g} s")
        time.sleep(0.5)
    return nodes


def _read(number: int, replies: Any, index: Tensor, scale: str, classes: int) -> tuple[Message, ...]:
    found, problems = {}, []
    for reply in replies:
        sender = f"node-{reply.metadata.src_node_id}"
        try:
            found[sender] = Message(sender, _answer(reply, index, scale, classes), told_by_reply(reply))
        except FedleakError as problem:
            problems.append(f"{sender} left out: {problem}")
    if problems:
        log.warning("fedleak: round %d: %s", number, "; ".join(problems))
    return tuple(found[name] for name in sorted(found))


def _answer(reply: Any, index: Tensor, scale: Any, classes: int) -> Predictions:
    if reply.has_error():
        raise RefusedError(f"replied with error {reply.error.code}: {said_by_error(reply)}")
    if ANSWER not in reply.content:
        raise RefusedError("replied without predictions")
    found = tensors_of(reply.content[ANSWER])
    values, about = found.get("values"), found.get("index", index)
    if about.ndim != 1 or len(set(about.tolist())) != about.numel() or not bool(torch.isin(about, index).all()):
        raise RefusedError("replied about other public examples than it was asked about")
    if values is None or tuple(values.shape) != (len(about), classes):
        shape = None if values is None else tuple(values.shape)
        raise RefusedError(f"replied with predictions of shape {shape}, asked for {(len(about), classes)}")
    if not bool(torch.isfinite(values).all()):
        raise RefusedError("replied with predictions that are not finite")
    return Predictions(values, scale, about)
