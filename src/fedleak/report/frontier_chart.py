"""The chart of utility against privacy: every setting, a curve for every defense, and the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence

from fedleak.report.axes import Axis, Box, round_ticks
from fedleak.report.charts import Line, Mark, Panel, colour_of, mark_at
from fedleak.report.frontier import Frontier, Setting
from fedleak.report.kinds import panel_name
from fedleak.report.words import percent, points

__all__ = ["frontier_panels"]

FRONT = 0
"""The colour of the front: none of an arm's."""
BOX = Box(width=620, height=400)
"""A sweep has many settings close together: in a chart of the usual size discs would stand far from their places."""


def frontier_panels(found: Sequence[Frontier]) -> list[Panel]:
    """Utility loss to the right, privacy loss upwards, the front as a staircase: the best place is the lower left."""
    return [_panel(one) for one in found]


def _panel(found: Frontier) -> Panel:
    costs, shares = ([getattr(s, name) for s in found.settings] for name in ("utility_loss", "privacy_loss"))
    low, high = min(0.0, *(c.low for c in costs)), max(found.limit, *(c.high for c in costs))
    spare = 0.06 * (high - low)
    ticks = tuple((tick, f"{100 * tick:g}") for tick in round_ticks(low, high, 6))
    x = Axis(low - spare, high + spare, *BOX.x, ticks=ticks)
    top = max(0.1, *(share.high for share in shares))
    y = Axis(-0.06 * top, 1.06 * top, *BOX.y, ticks=tuple((v, percent(v)) for v in round_ticks(0.0, top, 5)))
    marks: list[Mark] = []
    for one in found.settings:
        marks.append(_mark(one, x, y, marks))
    says = f"{panel_name(found.kind)}; " + "; ".join(mark.says for mark in marks)
    lines = (*_curves(found, x, y), _staircase(found, x, y))
    return Panel(f"{found.title} · {panel_name(found.kind)}", says, BOX, x, y, tuple(marks), lines)


def _mark(one: Setting, x: Axis, y: Axis, earlier: Sequence[Mark]) -> Mark:
    says = f"{one.number} {one.name}: costs {points(one.place[0])}, the attacker gets {percent(one.place[1])}"
    return mark_at(one.number, (x, one.utility_loss), (y, one.privacy_loss), BOX, earlier, says)


def _curves(found: Frontier, x: Axis, y: Axis) -> list[Line]:
    """adamsa.txt, figure 4: of every defense with several strengths, from no defense on to what stops most. In that
    order the costs at a given privacy loss are read off too (`matched`)."""
    free = [one for one in found.settings if not one.defended]
    drawn = []
    for family in dict.fromkeys(one.family for one in found.settings if one.defended):
        own = [one for one in found.settings if one.defended and one.family == family]
        if len(own) > 1:
            way = [*free, *sorted(own, key=lambda one: (-one.place[1], one.place[0]))]
            drawn.append(Line(colour_of(own[0].number), _points([one.place for one in way], x, y), median=False))
    return drawn


def _staircase(found: Frontier, x: Axis, y: Axis) -> Line:
    corners: list[tuple[float, float]] = []
    for one in found.front:
        if corners:
            corners.append((one.place[0], corners[-1][1]))
        corners.append(one.place)
    corners.append((x.high, corners[-1][1]))
    return Line(FRONT, _points(corners, x, y), median=True)


def _points(places: Sequence[tuple[float, float]], x: Axis, y: Axis) -> str:
    return " ".join(f"{x.at(cost):g},{y.at(privacy):g}" for cost, privacy in places)
