"""Defenses as a Flower client mod: `ClientApp(mods=[defend(Clip(norm=1), Gaussian(sigma=0.01))])`.

The mod sits between the client's own training and the network. It changes what a reply to a train message carries and
nothing else. A reply that it cannot defend is not sent: the client answers with the error instead.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedleak.defenses import Context, Defense, chain, label
from fedleak.defenses.compose import Chain
from fedleak.errors import RefusedError
from fedleak.integrations.flower.arrays import array_record, tensors_of, weights_of
from fedleak.integrations.flower.disclosed import told_by_reply
from fedleak.integrations.flower.logits import Request, asked_predictions
from fedleak.seeding import Seeds
from fedleak.types import Predictions, Weights

__all__ = ["Mod", "defend"]

Mod = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]
"""Flower's word for a function (message, context, call_next) -> reply."""

STATE = "fedleak.defend"
log = logging.getLogger("fedleak.flower")


def defend(*defenses: Defense, seed: int | None = None) -> Mod:
    """A client mod that applies these defenses, in order, to the weights, or in FedMD and DS-FL to the predictions,
    that a client sends.

    `seed` makes the noise repeatable: it is drawn per round, client and use from the seed alone. That is for audits:
    a server that knows the seed can take the noise away again. None, for deployments, draws from the system's own
    secret randomness.

    Sees: the arrays the server sent and those the client is about to send. Needs: defenses of the stage "message".
    Guarantees: what the chain of defenses guarantees for the weights or predictions; metrics and buffers (running
    statistics) leave as they are, and a warning says so where there are any buffers. A defense that needs the client's
    own model (directed) cannot run here: a mod does not see it, and nothing is sent.
    """
    members = chain(*defenses)
    wrong = [member for member in members.members if member.stage != "message"]
    if wrong:
        raise RefusedError(
            f"defend({label(wrong[0])}): acts at the stage {wrong[0].stage!r}, and a client mod sees only the finished "
            "message; put it into the client's training (dp_sgd: fedleak.integrations.opacus)"
        )

    def fedleak_defend(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        if not str(message.metadata.message_type).startswith("train"):
            return call_next(message, context)
        # Before the client's own code runs: it may change the arrays it was given.
        broadcast = {key: weights_of(record) for key, record in message.content.array_records.items()}
        round_index = _round(message)
        reply = call_next(message, context)
        if reply.has_error() or not members.members:
            return reply
        seeds = Seeds(secrets.randbits(63) if seed is None else seed)
        address = ("round", round_index, "client", _client(context), "use", _use(context))
        for key, record in list(reply.content.array_records.items()):
            known = Context(
                stage="message",
                client=str(_client(context)),
                round=round_index,
                samples=int(told_by_reply(reply).get("samples", 0)),
            )
            rng = seeds.generator("flower", key, *address)
            asked = asked_predictions(message, key)
            if asked is not None:
                reply.content[key] = array_record(_predictions(members, record, asked, known, rng), like=record)
                continue
            if key not in broadcast:
                raise RefusedError(
                    f"defend: the reply carries {key!r}, which the server did not send; only an update of what was "
                    "sent can be defended, so nothing is sent"
                )
            weights = _defensible(weights_of(record), broadcast[key])
            known = replace(known, broadcast=broadcast[key], previous=broadcast[key].tensors)
            defended: Weights = members.apply(weights, known, rng)
            reply.content[key] = array_record({**defended.tensors, **defended.buffers}, like=record)
        return reply

    return fedleak_defend


def _predictions(
    defense: Chain, record: Any, asked: Request, known: Context, rng: torch.Generator
) -> dict[str, Tensor]:
    """The predictions of a reply to `exchange`, defended; whatever else the record carries is refused."""
    found = tensors_of(record)
    values = found.get("values")
    if set(found) != {"values"} or values is None or not values.is_floating_point() or len(values) != len(asked.index):
        raise RefusedError(
            f"defend: the reply carries {', '.join(found) or 'nothing'}, and predictions for {len(asked.index)} public "
            "examples were asked for; what cannot be defended is not sent"
        )
    sent: Predictions = defense.apply(Predictions(values, asked.scale, asked.index), known, rng)
    return {"values": sent.values}


def _defensible(sent: Weights, broadcast: Weights) -> Weights:
    """The weights, unless a part of them would leave undefended without anybody noticing."""
    if set(sent.tensors) != set(broadcast.tensors):
        odd = sorted(set(sent.tensors) ^ set(broadcast.tensors))
        raise RefusedError(
            f"defend: the reply's arrays are not those that were broadcast (first difference: {odd[0]!r}), so the "
            "update cannot be told and nothing is sent"
        )
    whole = [name for name, value in sent.tensors.items() if not value.is_floating_point()]
    if whole:
        raise RefusedError(
            f"defend: array {whole[0]!r} is {sent.tensors[whole[0]].dtype}, and noise has no place in whole numbers; "
            "put the defense before the quantisation, or send floating point"
        )
    if sent.buffers:
        log.warning("fedleak defend: %d buffers (running statistics) leave undefended", len(sent.buffers))
    ordered = {name: sent.tensors[name] for name in broadcast.tensors}
    return Weights(ordered, sent.buffers)


def _round(message: Any) -> int:
    for config in message.content.config_records.values():
        if isinstance(config.get("server-round"), int):
            return int(config["server-round"])
    group = str(message.metadata.group_id)
    return int(group) if group.isdigit() else 0


def _client(context: Any) -> int | str:
    """The partition where the node has one, since node ids are drawn anew for every deployment."""
    identity: int | str = context.node_config.get("partition-id", context.node_id)
    return identity


def _use(context: Any) -> int:
    """How often this client has drawn noise: a round that is asked for twice must not get the same noise twice."""
    from fedleak.integrations.flower.installed import flower

    config = context.state.get(STATE) or flower().ConfigRecord({"uses": 0})
    uses = int(config["uses"])
    config["uses"] = uses + 1
    context.state[STATE] = config
    return uses
