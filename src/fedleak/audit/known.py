"""What the person at the keyboard says the server knows, where a recording does not say it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedleak.audit.registry import did_you_mean
from fedleak.audit.toml import parse_assignment
from fedleak.errors import RefusedError
from fedleak.types import Round, Transcript

__all__ = ["FACTS", "knowing", "parse_known"]


def _whole(value: Any, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _share(value: Any) -> bool:
    return _number(value) and value < 1


def _above_zero(value: Any) -> bool:
    return _number(value) and value > 0


def _wholes(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(_whole(one, least=0) for one in value)


def _batches(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(_wholes, value))


COUNT, LIST = "a whole number of at least 1", "a list of whole numbers, as in [0, 1]"
FACTS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "samples": (_whole, COUNT),
    "epochs": (_whole, COUNT),
    "batch_size": (_whole, COUNT),
    "unique_labels": (_whole, COUNT),
    "lr": (_above_zero, "a number above 0: nothing moves without a step"),
    "momentum": (_share, "a number from 0 up and below 1"),
    "label_counts": (_wholes, LIST),
    "target_labels": (_wholes, LIST),
    "batch_labels": (_batches, "a list of lists, one for each batch, as in [[0, 1], [1, 2]]"),
}
"""What attacks can be told, and what it has to look like."""


def parse_known(given: Sequence[str]) -> dict[str, Any]:
    """`name=value` of the command line, checked."""
    return _checked(dict(parse_assignment(text, "--known") for text in given))


def knowing(transcript: Transcript, facts: Mapping[str, Any]) -> Transcript:
    """The transcript with these facts about every client of every round; they replace what it says itself."""
    told = _checked(facts)
    if not told:
        return transcript

    def change(seen: Round) -> Round:
        received = tuple(
            replace(one, disclosed={name: value for name, value in one.disclosed.items() if name not in told})
            for one in seen.received
        )
        return replace(seen, received=received)

    setup = replace(transcript.setup, disclosed={**transcript.setup.disclosed, **told})
    return replace(transcript.mapped(change), setup=setup)


def _checked(facts: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in facts.items():
        if name not in FACTS:
            raise RefusedError(
                f"known={name}: no attack asks for it{did_you_mean(name, FACTS)}; choose one of {', '.join(FACTS)}"
            )
        fits, rule = FACTS[name]
        if not fits(value):
            raise RefusedError(f"known={name}={value!r}: must be {rule}")
    return dict(facts)
