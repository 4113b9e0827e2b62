"""What a Flower run tells its server besides the arrays: numbers in the train configuration and in the metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["said_by_error", "told_by_config", "told_by_reply"]

NAMES: Mapping[str, tuple[str, ...]] = {
    "lr": ("lr", "learning-rate"),
    "epochs": ("local-epochs", "epochs", "num-epochs"),
    "batch_size": ("batch-size",),
    "momentum": ("momentum",),
}
"""fedleak's word to what Flower apps call it; an underscore counts as a hyphen."""

WHOLE = ("epochs", "batch_size")


def told_by_config(message: Any) -> dict[str, Any]:
    """The training settings that the server itself sent out with a round."""
    given: dict[str, Any] = {}
    for config in message.content.config_records.values():
        given.update({str(key).replace("_", "-"): value for key, value in config.items()})
    told: dict[str, Any] = {}
    for name, spellings in NAMES.items():
        for spelling in spellings:
            value = _number(given.get(spelling))
            if value is not None and name not in told:
                told[name] = int(value) if name in WHOLE else value
    return told


def told_by_reply(reply: Any, key: str = "num-examples") -> dict[str, Any]:
    """How many examples stand behind a reply: clients say it, because the server weighs their updates with it."""
    for metrics in reply.content.metric_records.values():
        samples = _number(metrics.get(key))
        if samples is not None and samples == int(samples) and samples >= 1:
            return {"samples": int(samples)}
    return {}


def said_by_error(reply: Any) -> str:
    """Why a client replied with an error: the last line of a traceback says what happened."""
    lines = [line.strip() for line in (reply.error.reason or "").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no reason given"


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
