"""What the imitation of one client learns from: its predictions of this round, and of those before (adamsa.txt 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedleak.errors import RefusedError
from fedleak.learning.simplex import onto_simplex, raw_probabilities
from fedleak.types import Predictions, Round, Setup, Transcript

__all__ = ["Importance", "Lesson", "Observed", "importance", "lesson", "observe"]

Importance = Literal["normalised", "literal"]


@dataclass(frozen=True, eq=False)
class Observed:
    """All that one client sent, by round; `refused` says why it cannot be used."""

    sender: str
    sent: Mapping[int, Predictions]
    refused: str = ""


@dataclass(frozen=True, eq=False)
class Lesson:
    """The attacking logit of one round: `target` (n, classes) for the public examples `index` (n,)."""

    index: Tensor
    target: Tensor
    rounds: tuple[int, ...]


def observe(seen: Transcript, last: int) -> list[Observed]:
    """Every client's predictions up to round `last`, in the order in which clients first appear."""
    sent: dict[str, dict[int, Predictions]] = {}
    refused: dict[str, str] = {}
    for one in seen.rounds:
        if one.index > last:
            break
        for message in one.received:
            reason = _wrong(seen.setup, one, message.sender, message.payload)
            if reason:
                refused.setdefault(message.sender, reason)
            if isinstance(message.payload, Predictions):
                # Whole numbers (labels alone) have no softmax, half precision no 1e-12. Small whole numbers do not
                # index a tensor, and bytes would choose from it like a mask.
                payload = message.payload
                payload = replace(payload, values=payload.values.float(), index=payload.index.long())
                sent.setdefault(message.sender, {})[one.index] = payload
    if not sent:
        raise RefusedError(
            f"round={last}: no client sent predictions in rounds 1 to {last}, so there is no history to learn from; "
            "attack a transcript of a logit protocol (fedmd, fedgems, dsfl) in which clients took part"
        )
    return [Observed(sender, own, refused.get(sender, "")) for sender, own in sent.items()]


def _wrong(setup: Setup, round_: Round, sender: str, payload: object) -> str:
    """Why a message cannot be learned from, or nothing."""
    where = f"round {round_.index}, {sender}"
    if not isinstance(payload, Predictions):
        return f"{where}: sent {type(payload).__name__.lower()}; this attack reads predictions"
    rows, public = len(payload.values), 0 if setup.public is None else len(setup.public)
    if payload.values.ndim != 2 or payload.values.shape[1] != setup.classes:
        shape = tuple(payload.values.shape)
        return (
            f"{where}: predictions of shape {shape}, expected one column for each of {setup.classes} classes; "
            "leave such messages out of the recording"
        )
    if rows != len(payload.index):
        return (
            f"{where}: {rows} predictions for {len(payload.index)} public examples: the length changed, and `index` "
            "does not say which examples are meant; record an index of one number for each prediction"
        )
    if payload.index.is_floating_point() or payload.index.dtype == torch.bool:
        kind = str(payload.index.dtype).removeprefix("torch.")
        return f"{where}: an index of {kind} does not say which public examples are meant; record whole numbers"
    if rows == 0 or int(payload.index.min()) < 0 or int(payload.index.max()) >= public:
        return (
            f"{where}: predictions on examples that are not among the {public} public ones; record the public set "
            "that clients predicted on, and an index into it"
        )
    if not bool(torch.isfinite(payload.values).all()):
        return (
            f"{where}: predictions that are not finite, as of a model whose training broke down (lower protocol.lr); "
            "leave such messages out of a recording"
        )
    return ""


def importance(rounds: Mapping[int, object], now: int, reach: int, first_weight: float) -> dict[int, float]:
    """w_t = w0 t / T for the rounds t from max(1, T - T0) to T in which the client took part.

    >>> importance({1: 0, 2: 0, 3: 0, 4: 0}, 4, 2, 0.5)
    {2: 0.25, 3: 0.375, 4: 0.5}
    """
    return {t: first_weight * t / now for t in sorted(rounds) if max(1, now - reach) <= t <= now}


def lesson(observed: Observed, now: int, reach: int, first_weight: float, rule: Importance) -> Lesson:
    """The attacking logit of round `now`: the weighted sum over the window, as probabilities.

    The weights do not sum to one: "normalised" divides by their sum, "literal" leaves the target that much smaller (or
    larger), which multiplies the loss and changes nothing else. Raw numbers are averaged first, and only then is what
    noise made negative cut off (see `onto_simplex`).
    """
    latest = observed.sent[now]
    weights = importance(observed.sent, now, reach, first_weight)
    total = sum(weights.values())
    mean = torch.zeros_like(latest.values)
    for t, weight in weights.items():
        values = raw_probabilities(observed.sent[t])
        mean = mean + (weight / total) * values[_matched(observed, t, now)]
    target = onto_simplex(mean)
    return Lesson(latest.index, target * total if rule == "literal" else target, tuple(weights))


def _matched(observed: Observed, then: int, now: int) -> Tensor:
    """Positions in an earlier round's predictions of the examples that are predicted now."""
    before, latest = observed.sent[then].index, observed.sent[now].index
    if before.shape == latest.shape and bool((before == latest).all()):
        return torch.arange(len(latest), device=latest.device)
    if not torch.equal(before.sort().values, latest.sort().values):
        raise RefusedError(
            f"{observed.sender}: rounds {then} and {now} hold predictions on different public examples "
            f"({len(before)} and {len(latest)}), so they cannot be averaged; use T0 = 0 (msa), which needs no "
            "history, or let the protocol ask for the same examples in every round"
        )
    position: Tensor = before.argsort()[latest.argsort().argsort()]
    return position
