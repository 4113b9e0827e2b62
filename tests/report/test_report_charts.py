"""Charts: positions that can be worked out by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedleak.audit.rows import Row
from fedleak.audit.store import RunFolder
from fedleak.report.arms import arms_of
from fedleak.report.axes import Axis, Box, decades, round_ticks
from fedleak.report.blobs import Blobs
from fedleak.report.charts import RADIUS, trace_panels, tradeoff_panels
from fedleak.report.tables import summary

Make = Callable[..., Row]


def test_axes() -> None:
    assert Axis(0, 10, 100, 200).at(2.5) == 125
    assert Axis(0, 1, 200, 100).at(1) == 100  # upwards
    assert Axis(0.01, 100, 0, 80, kind="log").at(1) == 40
    assert Axis(0, 1, 0, 10).at(7) == 10  # outside: at the edge


@given(low=st.floats(-1e3, 1e3), width=st.floats(1e-3, 1e4))
def test_ticks_are_round_few_and_inside(low: float, width: float) -> None:
    high = low + width
    ticks = round_ticks(low, high)
    assert len(ticks) <= 7
    assert all(low - 1e-6 * width <= tick <= high + 1e-6 * width for tick in ticks)
    steps = {round((b - a) / width, 6) for a, b in itertools.pairwise(ticks)}
    assert len(steps) <= 1 or max(steps) - min(steps) < 1e-5


def test_ticks_by_hand() -> None:
    assert round_ticks(0, 1, 4) == [0, 0.5, 1]
    assert round_ticks(0, 200, 4) == [0, 50, 100, 150, 200]
    assert decades(1e-3, 10) == [(1e-3, "10⁻³"), (1e-2, "10⁻²"), (1e-1, "10⁻¹"), (1.0, "10⁰"), (10.0, "10¹")]
    assert [label for _, label in decades(1e-12, 1)] == ["10⁻¹²", "10⁻⁹", "10⁻⁶", "10⁻³", "10⁰"]


def test_an_axis_with_one_power_of_ten_on_it_still_shows_a_scale() -> None:
    assert decades(0.15, 4.0) == [(0.2, "0.2"), (0.5, "0.5"), (1.0, "1"), (2.0, "2")]
    assert [label for _, label in decades(1.5e-6, 4e-5)] == ["2·10⁻⁶", "5·10⁻⁶", "1·10⁻⁵", "2·10⁻⁵"]


def test_discs_do_not_cover_each_other(make_row: Make, make_utility: Make) -> None:
    names = ["none", *(f"clip(norm={n})" for n in range(1, 8))]
    rows = [make_row({"client": c, "defense": d}, {"recovered": [1.0]}) for d in names for c in "abc"]
    rows += [make_utility(d, [1.0] * 5 + [0.0] * 5) for d in names]  # all eight arms in the same place
    arms = arms_of(summary(rows), rows, lambda row: {})
    (panel,) = tradeoff_panels([("fedavg", arms)])
    discs = [(mark.disc_x, mark.disc_y) for mark in panel.marks]
    assert len(discs) == 8
    assert min(math.dist(a, b) for i, a in enumerate(discs) for b in discs[:i]) >= 2 * RADIUS
    assert {(mark.x, mark.y) for mark in panel.marks} == {(discs[0])}  # but their true place is the same


def test_a_mark_stands_at_accuracy_and_share(make_row: Make, make_utility: Make) -> None:
    rows = [make_row({"client": c}, {"recovered": [float(c < "c")]}) for c in "abcd"]
    rows.append(make_utility("none", [1.0] * 6 + [0.0] * 4))
    (panel,) = tradeoff_panels([("fedavg", arms_of(summary(rows), rows, lambda row: {}))])
    (mark,) = panel.marks
    assert (mark.x, mark.y) == (panel.x.at(0.6), panel.y.at(0.5))
    assert mark.says == "1 no defense: 60 % test accuracy, 50 % recovered"


def test_without_utility_there_is_no_chart(make_row: Make) -> None:
    rows = [make_row({"client": "a"}, {"recovered": [1.0]})]
    assert tradeoff_panels([("fedavg", arms_of(summary(rows), rows, lambda row: {}))]) == []


def traced(folder: RunFolder, make_row: Make, client: str, steps: list[int], objective: list[float]) -> Row:
    sha256 = folder.put_json({"steps": steps, "objective": objective})
    return make_row({"client": client}, {"recovered": [0.0]}, artifacts={"trace": sha256})


def test_the_median_of_victims_keeps_the_last_value_of_one_that_stopped(tmp_path: Path, make_row: Make) -> None:
    folder = RunFolder(tmp_path)
    rows = [
        traced(folder, make_row, "a", [0, 10, 20], [100.0, 10.0, 1.0]),
        traced(folder, make_row, "b", [0, 10], [100.0, 50.0]),
        traced(folder, make_row, "c", [0, 10, 20], [100.0, 80.0, 70.0]),
    ]
    (panel,) = trace_panels([("fedavg", arms_of(summary(rows), rows, lambda row: {}))], Blobs(folder))
    (median,) = (line for line in panel.lines if line.median)
    ys = [float(point.partition(",")[2]) for point in median.points.split()]
    assert ys == [panel.y.at(100.0), panel.y.at(50.0), panel.y.at(50.0)]
    assert panel.y.kind == "log"
    assert panel.title == "fedavg · dlm_plus"
    box = Box(height=panel.box.height)
    assert (panel.y.at(100.0), panel.y.at(1.0)) == (box.y[1], box.y[0])


@pytest.mark.parametrize("objective", [[0.0, 0.0], [5.0]])
def test_a_trace_that_says_nothing_is_not_drawn(tmp_path: Path, make_row: Make, objective: list[float]) -> None:
    folder = RunFolder(tmp_path)
    rows = [traced(folder, make_row, "a", list(range(len(objective))), objective)]
    assert trace_panels([("fedavg", arms_of(summary(rows), rows, lambda row: {}))], Blobs(folder)) == []


def test_an_objective_that_reaches_zero_is_drawn_at_the_lower_edge(tmp_path: Path, make_row: Make) -> None:
    folder = RunFolder(tmp_path)
    rows = [traced(folder, make_row, "a", [0, 1, 2], [100.0, 1.0, 0.0])]
    (panel,) = trace_panels([("fedavg", arms_of(summary(rows), rows, lambda row: {}))], Blobs(folder))
    assert panel.lines[0].points.split()[-1].endswith(f",{panel.box.y[0]:g}")
