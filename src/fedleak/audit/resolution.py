"""A specification with every default filled in: what spec.toml of a run folder holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedleak.components import resolved

__all__ = ["resolved_spec"]


def resolved_spec(
    tables: Mapping[str, Any], points: Sequence[Any], metrics: Sequence[str], seeds: Sequence[int]
) -> dict[str, Any]:
    """The tables with every default filled in, except where a sweep chooses the whole table."""
    swept = {path.split(".")[0] for path in tables.get("sweep", {})}
    first = points[0]
    full: dict[str, Any] = {
        "metrics": list(metrics),
        "seeds": list(seeds),
        "threshold": tables.get("threshold"),
        "time_limit": tables.get("time_limit"),
        "data": resolved(first.data),
        "model": {"name": first.model.name, **first.model.arguments},
        "protocol": {"name": first.protocol_name, **resolved(first.protocol)},
        "defenses": tables.get("defenses", []),
        "attacks": _distinct([_entry(choice) for point in points for choice in point.attacks]),
        "sweep": tables.get("sweep"),
        "cases": tables.get("cases"),
        "deployment": tables.get("deployment"),
    }
    for name in ("data", "model", "protocol", "defenses", "attacks"):
        if name in swept:
            full[name] = tables.get(name)
    return {key: value for key, value in full.items() if value not in (None, [], {})}


def _entry(choice: Any) -> dict[str, Any]:
    return {"name": choice.name, **({"on": list(choice.on)} if choice.on else {}), **resolved(choice.attack)}


def _distinct(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for number, entry in enumerate(entries) if entry not in entries[:number]]
