"""What an attack may be told, compared with what it needs, before any computing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedleak.errors import KnowledgeError, RefusedError
from fedleak.learning.secure_sum import TRAINING, is_sum
from fedleak.types import Attack, Message, Round, Setup, Transcript, Weights

__all__ = ["known", "needed", "require", "used"]


def needed(attack: Attack, message: Message) -> frozenset[str]:
    """What the attack must be told about this message; from weights some attacks need more than from gradients."""
    return attack.needs | (attack.needs_from_weights if isinstance(message.payload, Weights) else frozenset())


def used(attack: Attack, transcript: Transcript) -> frozenset[str]:
    """What the attack has a use for, but can do without (`uses`, which few attacks have), where it is disclosed."""
    wanted: frozenset[str] = getattr(attack, "uses", frozenset())
    if not wanted:
        return wanted
    return wanted & {
        name for message in _attacked(attack, transcript).received for name in known(transcript.setup, message)
    }


def known(setup: Setup, message: Message) -> Mapping[str, Any]:
    """What the server is assumed to know about one client: common knowledge, and over it what that client told."""
    return {**setup.disclosed, **message.disclosed}


def require(attack: Attack, transcript: Transcript) -> None:
    """Raise unless the attack can read what was sent in the attacked round and is told all it needs.

    RefusedError for a payload of the wrong kind or a round that is not there, KnowledgeError for missing knowledge.
    """
    round_ = _attacked(attack, transcript)
    name = type(attack).__name__
    for message in round_.received:
        if not isinstance(message.payload, attack.reads):
            can = " or ".join(kind.__name__.lower() for kind in attack.reads)
            raise RefusedError(
                f"{name}: round {round_.index}, {message.sender} sent {type(message.payload).__name__.lower()}; "
                f"this attack reads {can}"
            )
        missing = sorted(needed(attack, message) - set(known(transcript.setup, message)))
        if missing:
            raise KnowledgeError(
                f"{name}: needs {', '.join(missing)}, which the transcript does not disclose for {message.sender} in "
                f"round {round_.index}{_way_out(message, missing)}"
            )


def _way_out(message: Message, missing: list[str]) -> str:
    """Of the sum behind secure aggregation some things cannot be disclosed: no training of anybody made it."""
    if is_sum(message) and set(TRAINING) & set(missing):
        return (
            ": the server sees only the sum of its clients, which took more than one step each; choose an attack that "
            "needs less"
        )
    given = " ".join(f"--known {name}=..." for name in missing)
    return (
        f"; disclose it (a specification: the protocol's `disclose`; a recording: {given}, in Python known={{...}}) "
        "or choose an attack that needs less"
    )


def _attacked(attack: Attack, transcript: Transcript) -> Round:
    """The round whose messages the attack reads: a later one than the attacked where it is given `until`."""
    first = transcript.round(getattr(attack, "round", 1))
    until = getattr(attack, "until", None)
    return first if until is None else transcript.round(until)
