"""Defenses as a Flower client mod: `ClientApp(mods=[defend(Clip(norm=1), Gaussian(sigma=0.01))])`.

The mod sits between the client's own training and the network. It changes what a reply to a train message carries and
nothing else. A reply that it cannot defend is not sent: the client answers with the error instead.
"""

from __future__ import annotations

import copy
import logging
import secrets
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedleak.defenses import Context, Defense, chain, label
from fedleak.defenses.compose import Chain
from fedleak.errors import RefusedError
from fedleak.integrations.flower.arrays import array_record, tensors_of, weights_of
from fedleak.integrations.flower.disclosed import told_by_reply
from fedleak.integrations.flower.logits import Request, asked_predictions
from fedleak.integrations.flower.planning import Promise, promised
from fedleak.integrations.flower.training import STAGES, Duty, on_duty
from fedleak.learning.functional import Network
from fedleak.seeding import Seeds
from fedleak.types import Normalisation, Predictions, PublicSet, Weights

__all__ = ["Mod", "defend"]

Mod = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]
"""Flower's word for a function (message, context, call_next) -> reply."""

STATE = "fedleak.defend"
log = logging.getLogger("fedleak.flower")


def defend(
    *defenses: Defense,
    seed: int | None = None,
    model: Callable[[Any], nn.Module] | None = None,
    public: PublicSet | None = None,
    normalisation: Normalisation | tuple[float, float] | None = None,
) -> Mod:
    """A client mod that applies these defenses, each at its own stage, to what a client sends: weights, or in FedMD
    and DS-FL predictions.

    `seed` makes the noise repeatable: it is drawn per round, client and use from the seed alone. That is for audits:
    a server that knows the seed can take the noise away again. None, for deployments, draws from the system's own
    secret randomness.

    What a mod cannot see is handed to it. `model(context)` returns the client's own network as it stands, with its
    weights; it is asked before the client's code runs, so that it is the model behind the last message, and before
    the first one the model that the client starts with. `public` are the public examples, in pixels, as `exchange`
    has them on the server; `normalisation` is what the network wants done to them.

        message     applied to the reply. directed needs `model` and `public`.
        gradients, examples     (dp_sgd, prune, noise with on="gradients") applied by `train_defended` inside the
                    client's training; a reply that is not its result is not sent.
        protocol    the client's own part of the plan. one_shot: its first answer is its only one; asked again it
                    still learns from what it is told and replies with an error. cross_domain (needs `public` with
                    `domains`): it predicts on, and answers about, foreign examples only.

    Sees: what the server sent and what the client is about to send. Needs: flwr >= 1.24.
    Guarantees: what the chain of defenses guarantees for the weights or predictions; metrics and buffers (running
    statistics) leave as they are, and a warning says so where there are any buffers.
    """
    members = chain(*defenses)
    if isinstance(normalisation, tuple):
        normalisation = Normalisation((float(normalisation[0]),), (float(normalisation[1]),))
    _complete(members, model, public)
    promise, inside = promised(members, public), any(member.stage in STAGES for member in members.members)

    def fedleak_defend(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        if not str(message.metadata.message_type).startswith("train") or not members.members:
            return call_next(message, context)
        # Before the client's own code runs: it may change the arrays it was given.
        broadcast = {key: weights_of(record) for key, record in message.content.array_records.items()}
        address = ("round", _round(message), "client", _client(context), "use", _count(context, "uses"))
        seeds = Seeds(secrets.randbits(63) if seed is None else seed)
        known = Context(
            stage="message",
            client=str(_client(context)),
            round=_round(message),
            network=None if model is None else _own(model, context),
            normalisation=normalisation or Normalisation(),
            public=public,
        )
        promise.narrow(message)
        duty = _duty(members, known, seeds.under("flower", "training", *address), message) if inside else None
        with nullcontext() if duty is None else on_duty(duty):
            reply = call_next(message, context)
        if reply.has_error():
            return reply
        if _count(context, "sent", add=False) >= promise.messages:
            return promise.kept(message)
        known = replace(known, samples=int(told_by_reply(reply).get("samples", 0)))
        for key, record in list(reply.content.array_records.items()):
            rng = seeds.generator("flower", key, *address)
            asked = asked_predictions(message, key)
            if asked is not None:
                reply.content[key] = _predictions(members, record, asked, known, rng, promise)
                continue
            if key not in broadcast:
                raise RefusedError(
                    f"defend: the reply carries {key!r}, which the server did not send; only an update of what was "
                    "sent can be defended, so nothing is sent"
                )
            promise.weights(key)
            if duty is not None:
                duty.ended_with(tensors_of(record))
            weights = _defensible(weights_of(record), broadcast[key])
            at = replace(known, broadcast=broadcast[key], previous=broadcast[key].tensors)
            defended: Weights = members.apply(weights, at, rng)
            reply.content[key] = array_record({**defended.tensors, **defended.buffers}, like=record)
        _count(context, "sent")
        return reply

    return fedleak_defend


def _complete(members: Chain, model: Any, public: PublicSet | None) -> None:
    """Is everything there that the defenses use? Asked when the app is made, not when it first sends."""
    given = {"network": model, "public": public}
    ways = {
        "network": "model=own_model, where own_model(context) returns the client's network as it stands",
        "public": "public=PublicSet(...), the public examples that the server has too",
    }
    for member in members.members:
        uses = [name for name in getattr(member, "uses", ()) if name in ways]
        missing = [name for name in uses if given[name] is None]
        if missing:
            raise RefusedError(
                f"defend({label(member)}): uses {' and '.join(missing)}, which a client mod does not see and nobody "
                f"gave; write defend(..., {'; '.join(ways[name] for name in missing)})"
            )


def _own(model: Callable[[Any], nn.Module], context: Any) -> Network:
    """A copy of the client's network as it stands; the client's own randomness must not move."""
    with torch.random.fork_rng(devices=[]):
        module = model(context)
    if not isinstance(module, nn.Module):
        raise RefusedError(
            f"model={getattr(model, '__name__', model)!r}: must return the client's torch.nn.Module as it stands, it "
            f"returned {type(module).__name__}"
        )
    return Network(copy.deepcopy(module).cpu().eval())


def _duty(members: Chain, known: Context, seeds: Seeds, message: Any) -> Duty:
    records = list(message.content.array_records.values())
    if "public-index" in message.content.config_records.get("config", {}) or len(records) != 1:
        inner = next(member for member in members.members if member.stage in STAGES)
        raise RefusedError(
            f"defend({label(inner)}): acts on the local training from broadcast weights, and this message brings "
            f"{len(records)} sets of weights or asks for predictions, which are also learned from other clients; use "
            "a defense of the message (gaussian, laplace, directed, ...)"
        )
    return Duty(members, known, seeds, tensors_of(records[0]))


def _predictions(
    defense: Chain, record: Any, asked: Request, known: Context, rng: torch.Generator, promise: Promise
) -> Any:
    """The predictions of a reply to `exchange`, defended; whatever else the record carries is refused."""
    found = tensors_of(record)
    values = found.get("values")
    if set(found) != {"values"} or values is None or not values.is_floating_point() or len(values) != len(asked.index):
        raise RefusedError(
            f"defend: the reply carries {', '.join(found) or 'nothing'}, and predictions for {len(asked.index)} public "
            "examples were asked for; what cannot be defended is not sent"
        )
    if known.public is not None and int(asked.index.max()) >= len(known.public):
        raise RefusedError(
            f"defend(public=...): has {len(known.public)} examples, and the server asks about number "
            f"{int(asked.index.max())}; give the public set that the server has"
        )
    own = known if known.network is None else replace(known, previous=known.network.initial())
    sent: Predictions = defense.apply(Predictions(values, asked.scale, asked.index), own, rng)
    content: dict[str, Tensor] = {"values": sent.values.to(values.dtype)}
    return array_record({**content, "index": asked.index} if promise.narrows else content)


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


def _count(context: Any, what: str, add: bool = True) -> int:
    """What the client's state says of its `uses` (a round that is asked for twice must not get the same noise twice)
    or of its messages `sent`, before one is added."""
    from fedleak.integrations.flower.installed import flower

    config = context.state.get(STATE) or flower().ConfigRecord({})
    before = int(config.get(what, 0))
    if add:
        config[what] = before + 1
        context.state[STATE] = config
    return before
