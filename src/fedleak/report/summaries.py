"""One thing that was tried, over everything that was repeated: its scores, what a guess gets, how well it did."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedleak.audit.rows import Row
from fedleak.metrics.intervals import Interval
from fedleak.report.kinds import EVERYBODY, Kind, kind_of, measure, things

__all__ = ["Null", "Summary", "natural"]


@dataclass(frozen=True)
class Null:
    """The best that somebody reaches who saw nothing of what was sent."""

    name: str
    mean: float


@dataclass(frozen=True)
class Summary:
    """One protocol, defense, attack (and whatever was swept), over everything that was repeated."""

    where: Mapping[str, Any]
    rows: tuple[Row, ...]
    scores: Mapping[str, Interval]
    nulls: Mapping[str, Null]
    utility: Interval | None

    @cached_property
    def kind(self) -> Kind:
        """What was found, by the scores that its rows have."""
        return kind_of(self.rows)

    @property
    def success(self) -> Interval | None:
        """The share that an attacker wants high: images recovered, classes recognised, test images that the copy of a
        model gets right, labels named right."""
        found = self.scores.get(measure(self.kind))
        return found if found is None or self.kind != "counts" else _complement(found)

    @property
    def success_null(self) -> Null | None:
        """What a guess reaches of it."""
        found = self.nulls.get(measure(self.kind))
        return found if found is None or self.kind != "counts" else Null(found.name, 1.0 - found.mean)

    @property
    def hits(self) -> int:
        """How many of the `images` the attack got."""
        return round(self.success.mean * self.success.n) if self.success is not None else 0

    @property
    def images(self) -> int:
        """How many things were judged (images, classes, test images, labels): a victim whose trial failed has none."""
        return max((found.n for found in self.scores.values()), default=0)

    @property
    def things(self) -> str:
        """What they are called."""
        return things(self.kind, self.where.get("dataset"))

    @property
    def recovered(self) -> Interval | None:
        return self.scores.get("recovered")

    @property
    def recovered_images(self) -> int:
        return round(sum(sum(row.scores.get("recovered", ())) for row in self.rows))

    @property
    def status(self) -> dict[str, int]:
        """Victims by how their attack ended, most frequent first."""
        return dict(sorted(Counter(str(row.status) for row in self.rows).items(), key=lambda pair: (-pair[1], pair[0])))

    @property
    def granted(self) -> tuple[str, ...]:
        return tuple(sorted({name for row in self.rows for name in row.granted}))

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The PSNR that counts as recovered. Nothing else than images is judged by it."""
        if self.kind != "images":
            return ()
        return tuple(sorted({row.threshold for row in self.rows if row.threshold is not None}))

    @property
    def clients(self) -> int:
        """How many clients are named; 0 where the finding is about all of them together."""
        return len({str(row.where["client"]) for row in self.rows if "client" in row.where} - {EVERYBODY})

    @property
    def seeds(self) -> tuple[Any, ...]:
        return tuple(sorted({row.where["seed"] for row in self.rows if "seed" in row.where}, key=natural))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON and for people's own tables."""
        null = self.success_null
        return {
            "where": dict(self.where),
            "kind": self.kind,
            "images": self.images,
            "victims": len(self.rows),
            "status": self.status,
            "granted": list(self.granted),
            "thresholds": list(self.thresholds),
            "seeds": list(self.seeds),
            "scores": {metric: _plain(value) for metric, value in self.scores.items()},
            "nulls": {metric: {"name": null.name, "mean": null.mean} for metric, null in self.nulls.items()},
            "success": None if self.success is None else _plain(self.success),
            "guess": None if null is None else {"name": null.name, "mean": null.mean},
            "utility": None if self.utility is None else _plain(self.utility),
        }


def natural(value: Any) -> tuple[tuple[int, float, str], ...]:
    """Text with its numbers compared as numbers."""
    parts = re.split(r"(\d+\.?\d*(?:e[-+]?\d+)?)", str(value))
    return tuple((0, float(part), "") if at % 2 else (1, 0.0, part) for at, part in enumerate(parts) if part)


def _plain(found: Interval) -> dict[str, Any]:
    return {"mean": found.mean, "low": found.low, "high": found.high, "n": found.n}


def _complement(found: Interval) -> Interval:
    return Interval(1.0 - found.mean, 1.0 - found.high, 1.0 - found.low, found.n, found.resampled)
