"""[sweep]: paths into the specification, each with a list of values; every combination is a point."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from fedleak.audit.checks import Findings
from fedleak.audit.registry import did_you_mean
from fedleak.audit.toml import assign, look, nowhere

__all__ = ["expand"]

SWEEPABLE = ("data", "model", "protocol", "defenses", "attacks")


def expand(tables: Mapping[str, Any], found: Findings) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(what is swept, the tables) for each point of the cartesian product."""
    base = {k: v for k, v in tables.items() if k != "sweep"}
    axes = tables.get("sweep", {})
    if not isinstance(axes, Mapping):
        found.add("sweep", f"must be a table of paths and lists, found {axes!r}")
        return [({}, base)]
    good: dict[str, list[Any]] = {}
    for path, values in axes.items():
        if path.split(".")[0] not in SWEEPABLE:
            found.add(f"sweep.{path}", f"not a path into the spec{did_you_mean(path.split('.')[0], SWEEPABLE)}")
        elif not isinstance(values, list) or not values:
            found.add(f"sweep.{path}", f"must be a list with at least one value, found {values!r}")
        else:
            good[path] = values
    points = []
    for combination in itertools.product(*good.values()):
        point, where = base, {}
        for path, value in zip(good, combination, strict=True):
            try:
                point = assign(point, path, value)
                where.update(_flat(path, look(point, path) if not isinstance(value, Mapping) else value))
            except (KeyError, IndexError, ValueError, TypeError):
                found.add(f"sweep.{path}", nowhere(point, path))
        points.append((where, point))
    return points


def _flat(path: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        flat: dict[str, Any] = {}
        for key, inner in value.items():
            flat.update(_flat(f"{path}.{key}", inner))
        return flat
    plain = value if isinstance(value, str | int | float | bool) else str(value)
    return {} if path in ("protocol.name", "data.name", "model.name") else {path: plain}
