"""Charts as geometry: what stands where. The template draws it, so that every word passes through its escaping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedleak.metrics.intervals import Interval
from fedleak.report.arms import Arm
from fedleak.report.axes import Axis, Box, decades, round_ticks
from fedleak.report.blobs import Blobs
from fedleak.report.kinds import KINDS, Kind, panel_name, things
from fedleak.report.tables import Summary
from fedleak.report.words import is_attackers, percent, recipe, setting

__all__ = ["Line", "Mark", "Panel", "colour_of", "kind_title", "mark_at", "title_of", "trace_panels", "tradeoff_panels"]

COLOURS = 8
RADIUS = 9.0
VICTIMS = 10
POINTS = 80
"""More points than pixels make a line no truer, only the page larger."""


@dataclass(frozen=True)
class Mark:
    """An arm: where it truly is, where its disc stands so that discs do not cover each other, and its whiskers."""

    number: int
    colour: int
    x: float
    y: float
    disc_x: float
    disc_y: float
    across: tuple[float, float]
    along: tuple[float, float]
    says: str


@dataclass(frozen=True)
class Line:
    colour: int
    points: str
    median: bool


@dataclass(frozen=True)
class Panel:
    """One small chart."""

    title: str
    says: str
    box: Box
    x: Axis
    y: Axis
    marks: tuple[Mark, ...] = ()
    lines: tuple[Line, ...] = ()
    measure: str = ""
    """What stands on the upright axis."""


def title_of(found: Arm | Summary, keys: Sequence[str], several: Sequence[str]) -> str:
    """The federation's name in a report: the protocol, and what else tells it from the others."""
    named = [str(found.where.get(key)) for key in ("dataset", "model") if key in several]
    extra = setting(found.where, [key for key in keys if not is_attackers(key) and not key.startswith("defense")])
    return " · ".join([*named, str(found.where.get("protocol")), *([extra] if extra else [])])


def colour_of(number: int) -> int:
    return 1 + (number - 1) % COLOURS


def tradeoff_panels(federations: Sequence[tuple[str, Sequence[Arm]]]) -> list[Panel]:
    """Test accuracy against what the strongest attack on each arm got; one panel per federation and kind of finding."""
    ranges = [arm.utility for _, arms in federations for arm in arms if arm.utility is not None and arm.kinds]
    if not ranges:
        return []
    low, high = min(found.low for found in ranges), max(found.high for found in ranges)
    spare = max(0.05, 0.12 * (high - low))
    low, high = max(-0.03, low - spare), min(1.03, high + spare)
    box = Box()
    ticks = tuple((value, percent(value)) for value in round_ticks(max(0.0, low), min(1.0, high), 4))
    x = Axis(low, high, *box.x, ticks=ticks)
    y = Axis(-0.06, 1.06, *box.y, ticks=tuple((v, percent(v)) for v in (0.0, 0.25, 0.5, 0.75, 1.0)))
    several = {kind for _, arms in federations for arm in arms for kind in arm.kinds} != {"images"}
    panels = []
    for title, arms in federations:
        for kind in KINDS:
            marks: list[Mark] = []
            for arm in arms:
                mark = _mark(arm, kind, x, y, box, marks)
                if mark is not None:
                    marks.append(mark)
            name = f"{title} · {kind_title(kind, arms)}" if several else title
            says = "; ".join(mark.says for mark in marks)
            if marks:
                panels.append(Panel(name, says, box, x, y, marks=tuple(marks), measure=panel_name(kind)))
    return panels


def kind_title(kind: Kind, arms: Sequence[Arm]) -> str:
    """What was attacked, for the line or the chart of one kind of finding."""
    name = things(kind, arms[0].where.get("dataset"))
    return {"classes": f"pictures of {name}", "model": "copied models"}.get(kind, name)


def _mark(arm: Arm, kind: Kind, x: Axis, y: Axis, box: Box, earlier: Sequence[Mark]) -> Mark | None:
    found, worth = arm.strongest_of(kind), arm.utility
    if found is None or found.success is None or worth is None:
        return None
    share = found.success
    says = f"{arm.number} {arm.title}: {percent(worth.mean)} test accuracy, {percent(share.mean)} {panel_name(kind)}"
    return mark_at(arm.number, (x, worth), (y, share), box, earlier, says)


def mark_at(
    number: int,
    across: tuple[Axis, Interval],
    along: tuple[Axis, Interval],
    box: Box,
    earlier: Sequence[Mark],
    says: str,
) -> Mark:
    """The mark of an arm where its two means meet, with their intervals as whiskers and its disc beside the earlier."""
    (x, right), (y, up) = across, along
    at_x, at_y = x.at(right.mean), y.at(up.mean)
    disc_x, disc_y = _free_place(at_x, at_y, box, earlier)
    return Mark(
        number=number,
        colour=colour_of(number),
        x=at_x,
        y=at_y,
        disc_x=disc_x,
        disc_y=disc_y,
        across=(x.at(right.low), x.at(right.high)),
        along=(y.at(up.low), y.at(up.high)),
        says=says,
    )


def _free_place(x: float, y: float, box: Box, earlier: Sequence[Mark]) -> tuple[float, float]:
    """The true place where it is free, else the nearest free one on widening rings around it."""

    def free(place: tuple[float, float]) -> bool:
        inside = box.x[0] + RADIUS <= place[0] <= box.x[1] - RADIUS and box.y[1] <= place[1] <= box.y[0]
        return inside and all(math.dist(place, (mark.disc_x, mark.disc_y)) >= 2 * RADIUS + 1 for mark in earlier)

    rings = [
        (round(x + ring * 10 * math.cos(turn * math.pi / 6), 1), round(y - ring * 10 * math.sin(turn * math.pi / 6), 1))
        for ring in range(13)
        for turn in range(12)
    ]
    return next((place for place in rings if free(place)), (x, y))


def trace_panels(federations: Sequence[tuple[str, Sequence[Arm]]], blobs: Blobs) -> list[Panel]:
    """The objective of each attack over its steps: a thin line per victim, a bold one for the median of an arm."""
    panels = []
    for title, arms in federations:
        tried = [(arm, found) for arm in arms for found in arm.attacks]
        names = [recipe(found.where, [other.where for _, other in tried]) for _, found in tried]
        for attack in dict.fromkeys(names):
            chosen = [one for one, name in zip(tried, names, strict=True) if name == attack]
            traces = [(colour_of(arm.number), _traces(found, blobs)) for arm, found in chosen]
            panel = _trace_panel(f"{title} · {attack}", [(colour, found) for colour, found in traces if found])
            if panel is not None:
                panels.append(panel)
    return panels


def _traces(found: Summary, blobs: Blobs) -> list[tuple[list[int], list[float]]]:
    traces = (blobs.trace(row) for row in found.rows if "trace" in row.artifacts)
    kept = [trace for trace in traces if len(trace[0]) > 1]
    return kept[:VICTIMS]


def _trace_panel(title: str, arms: Sequence[tuple[int, list[tuple[list[int], list[float]]]]]) -> Panel | None:
    values = [value for _, traces in arms for _, objective in traces for value in objective]
    positive = [value for value in values if value > 0]
    if not positive:
        return None
    low, high = min(positive), max(positive)
    log = high > 20 * low and min(values) >= 0
    if not log:
        low, high = min(values), max(values) if max(values) > min(values) else min(values) + 1
    steps = [step for _, traces in arms for found, _ in traces for step in found]
    box = Box(height=232)
    wide = (min(steps), max(max(steps), min(steps) + 1))
    x = Axis(*wide, *box.x, ticks=tuple((tick, f"{tick:g}") for tick in round_ticks(*wide, 4)))
    marks = decades(low, high) if log else [(tick, f"{tick:.3g}") for tick in round_ticks(low, high, 4)]
    y = Axis(low, high, *box.y, ticks=tuple(marks), kind="log" if log else "linear")
    lines = [_line(colour, s, v, x, y) for colour, traces in arms for s, v in traces]
    medians = [_line(colour, *_median(traces), x, y, median=True) for colour, traces in arms]
    says = f"the objective falls from {values[0]:.2g} to {min(values):.2g} at best over {max(steps)} steps"
    return Panel(title, says, box, x, y, lines=(*lines, *medians))


def _median(traces: Sequence[tuple[list[int], list[float]]]) -> tuple[list[int], list[float]]:
    """At every step over all victims; one that stopped early keeps its last value, as its image does."""
    steps = sorted({step for found, _ in traces for step in found})
    spread = [np.asarray(v)[np.clip(np.searchsorted(s, steps, side="right") - 1, 0, None)] for s, v in traces]
    return steps, [float(value) for value in np.median(np.stack(spread), axis=0)]


def _line(colour: int, steps: Sequence[int], values: Sequence[float], x: Axis, y: Axis, median: bool = False) -> Line:
    kept = sorted({round(at) for at in np.linspace(0, len(steps) - 1, min(POINTS, len(steps)))})
    points = " ".join(f"{x.at(steps[at]):g},{y.at(values[at]):g}" for at in kept)
    return Line(colour, points, median)
