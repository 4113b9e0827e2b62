"""The confidence gap: how sure the server's model and the clients' own are, on public and on private data.

As in figure 3 of pli.txt: normalised histograms of the entropy of what each model predicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedleak.audit.rows import UTILITY, Row
from fedleak.report.arms import Arm
from fedleak.report.axes import Axis, Box, round_ticks
from fedleak.report.blobs import Blobs
from fedleak.report.tables import agrees
from fedleak.report.words import number, percent

__all__ = ["Curve", "Gap", "confidence_panels", "histogram"]

NAMES = ("server on public", "server on private", "client on public", "client on private")
BINS = 30


@dataclass(frozen=True)
class Curve:
    """One histogram as a stepped line. `colour` tells server from client, `dashed` private from public."""

    name: str
    colour: int
    dashed: bool
    points: str


@dataclass(frozen=True)
class Gap:
    title: str
    says: str
    box: Box
    x: Axis
    y: Axis
    curves: tuple[Curve, ...]


def confidence_panels(federations: Sequence[tuple[str, Sequence[Arm]]], rows: Iterable[Row], blobs: Blobs) -> list[Gap]:
    """Of every federation that recorded it: without a defense, and as deployed; else of its first arm."""
    recorded = [row for row in rows if row.where.get("attack") == UTILITY and "entropies" in row.artifacts]
    panels = []
    for title, arms in federations:
        chosen = [arm for arm in arms if not arm.defended or arm.deployed] or list(arms[:1])
        for arm in chosen:
            pooled = _pooled((row for row in recorded if agrees(row.where, arm.where)), blobs)
            if pooled:
                panels.append(_panel(f"{title} · {arm.title}", pooled))
    return panels


def histogram(values: NDArray[np.float64], high: float) -> NDArray[np.float64]:
    """The share of the values in each of the bins from 0 to `high`; they sum to 1."""
    counts, _ = np.histogram(np.clip(values, 0.0, high), bins=BINS, range=(0.0, high))
    return counts / max(len(values), 1)


def _pooled(rows: Iterable[Row], blobs: Blobs) -> dict[str, NDArray[np.float64]]:
    """All seeds together; the trials of one federation name the same blob, which counts once."""
    pieces: dict[str, list[NDArray[np.float64]]] = {}
    for row in {row.artifacts["entropies"]: row for row in rows}.values():
        for name, values in blobs.entropies(row).items():
            if name in NAMES and len(values):
                pieces.setdefault(name, []).append(values)
    return {name: np.concatenate(pieces[name]) for name in NAMES if name in pieces}


def _panel(title: str, pooled: dict[str, NDArray[np.float64]]) -> Gap:
    high = max(float(max(values.max() for values in pooled.values())), 1e-3)
    shares = {name: histogram(values, high) for name, values in pooled.items()}
    top = max(float(share.max()) for share in shares.values())
    box = Box(height=232)
    x = Axis(0.0, high, *box.x, ticks=tuple((tick, f"{tick:g}") for tick in round_ticks(0.0, high, 5)))
    y = Axis(0.0, top, *box.y, ticks=tuple((tick, percent(tick)) for tick in round_ticks(0.0, top, 4)))
    middles = (f"{name} {number(float(np.median(values)))}" for name, values in pooled.items())
    curves = tuple(
        Curve(name, 2 if name.startswith("server") else 8, name.endswith("private"), _steps(share, high, x, y))
        for name, share in shares.items()
    )
    return Gap(title, f"median entropy in nats: {', '.join(middles)}", box, x, y, curves)


def _steps(shares: NDArray[np.float64], high: float, x: Axis, y: Axis) -> str:
    edges = [x.at(float(edge)) for edge in np.linspace(0.0, high, BINS + 1)]
    points = [f"{edges[0]:g},{y.at(0.0):g}"]
    for at, share in enumerate(shares):
        height = y.at(float(share))
        points += [f"{edges[at]:g},{height:g}", f"{edges[at + 1]:g},{height:g}"]
    return " ".join([*points, f"{edges[-1]:g},{y.at(0.0):g}"])
