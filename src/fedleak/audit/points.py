"""What a checked specification consists of: points of the sweep, each with its arms and its attacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedleak.audit.toml import dumps
from fedleak.components import resolved
from fedleak.types import ModelSpec

__all__ = ["Arm", "AttackChoice", "Point", "Spec"]


def _entry(table: str, path: str) -> int | None:
    """The number of the entry that a path leads into, as 1 of `defenses.1.sigma`; None if into no entry of `table`."""
    first, *rest = path.split(".")
    return int(rest[0]) if first == table and rest and rest[0].isdigit() else None


@dataclass(frozen=True)
class Arm:
    """One arm of the comparison: what clients do before they send."""

    label: str
    names: tuple[str, ...]
    defenses: tuple[Any, ...]
    entries: frozenset[int] = frozenset()
    """Which of the [[defenses]] entries it is made of."""

    def touched_by(self, path: str) -> bool:
        """Whether a swept value is any of this arm's: `defenses.1.sigma` is about the arms that hold entry 1 alone."""
        return _entry("defenses", path) in (None, *self.entries)

    def describe(self) -> list[dict[str, Any]]:
        return [
            {"name": n, "revision": d.revision, **resolved(d)} for n, d in zip(self.names, self.defenses, strict=True)
        ]


@dataclass(frozen=True)
class AttackChoice:
    """An attack with its hyperparameters; `extra` tells apart entries that share a name."""

    name: str
    attack: Any
    extra: Mapping[str, Any] = field(default_factory=dict)
    on: tuple[str, ...] = ()
    """Only on these protocols; empty: wherever it can read what is sent."""
    entry: int = 0
    """Which of the [[attacks]] entries it is."""

    def own(self, where: Mapping[str, Any]) -> dict[str, Any]:
        """What is swept, as far as it is about this attack: `attacks.1.tau` is about entry 1 alone, so that the others
        run and show once."""
        return {path: value for path, value in where.items() if _entry("attacks", path) in (None, self.entry)}

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "revision": self.attack.revision, **resolved(self.attack)}


@dataclass(frozen=True)
class Point:
    """One point of the sweep: everything but the seed is fixed."""

    data: Any
    model: ModelSpec
    protocol_name: str
    protocol: Any
    arms: tuple[Arm, ...]
    attacks: tuple[AttackChoice, ...]
    where: Mapping[str, Any] = field(default_factory=dict)

    def where_of(self, arm: Arm) -> dict[str, Any]:
        """What is swept, as far as it is about this arm: one that a swept strength is not about is the same at every
        point, and runs and shows once."""
        return {path: value for path, value in self.where.items() if arm.touched_by(path)}


@dataclass(frozen=True)
class Spec:
    """A specification without a problem in it."""

    tables: Mapping[str, Any]
    points: tuple[Point, ...]
    metrics: tuple[str, ...]
    seeds: tuple[int, ...]
    threshold: float | None
    time_limit: float | None
    """Seconds that one trial may take; no part of what a trial is, so that another limit does nothing again."""
    deployed: str | None

    @cached_property
    def text(self) -> str:
        """The resolved specification as TOML; running it again gives the same trials."""
        return dumps(self.tables)
