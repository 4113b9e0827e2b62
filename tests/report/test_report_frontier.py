"""Fronts, areas and advice worked out by hand, and the curves of two defenses at the same privacy loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import fedleak
from fedleak.audit.rows import Row
from fedleak.audit.store import RunFolder
from fedleak.metrics.intervals import Interval
from fedleak.report.arms import arms_of
from fedleak.report.frontier import Setting, area, family_of, frontiers, pareto, recommend
from fedleak.report.frontier_chart import frontier_panels
from fedleak.report.matched import cost_at, curves_by_seed, matched_difference
from fedleak.report.page import _environment, build_report
from fedleak.report.tables import summary


def at(cost: float, privacy: float, name: str = "", defended: bool = True, spread: float = 0.0) -> Setting:
    found = [Interval(v, v - spread, v + spread, 10, ("seed",) if spread else ()) for v in (cost, privacy)]
    return Setting(name or f"d({cost})", "d", found[0], found[1], 1, defended)


FREE = at(0.0, 0.8, "no defense", defended=False)


# --- the front ----------------------------------------------------------------------------------------------------


def test_the_front_by_hand() -> None:
    good, better, beaten, dear = at(0.02, 0.5), at(0.10, 0.2), at(0.05, 0.6), at(0.30, 0.2)
    # (0.05, 0.6) loses to (0.02, 0.5) in both; (0.30, 0.2) gets no less than (0.10, 0.2) and costs more
    assert pareto([beaten, dear, better, FREE, good]) == (FREE, good, better)


def test_a_defense_that_is_better_in_both_leaves_nothing_else() -> None:
    assert pareto([FREE, at(-0.01, 0.4)]) == (at(-0.01, 0.4),)
    twins = (at(0.1, 0.4, "a"), at(0.1, 0.4, "b"))
    assert len(pareto(twins)) == 2


PLACES = st.lists(st.tuples(st.integers(-5, 30), st.integers(0, 100)), min_size=1, max_size=12)


@given(places=PLACES)
def test_a_front_is_never_empty_falls_and_beats_all_the_rest(places: list[tuple[int, int]]) -> None:
    settings = [at(x / 100, y / 100) for x, y in places]
    front = pareto(settings)
    assert front
    for cheap, dear in pairwise(front):
        assert cheap.place == dear.place or (cheap.place[0] < dear.place[0] and cheap.place[1] > dear.place[1])
    for one in settings:
        assert any(f.place[0] <= one.place[0] and f.place[1] <= one.place[1] for f in front)


# --- the area -----------------------------------------------------------------------------------------------------


def test_the_area_by_hand() -> None:
    # 0.8 up to a budget of 0.1, then 0.3 up to 0.4: (0.1 * 0.8 + 0.3 * 0.3) / 0.4
    assert area([FREE, at(0.1, 0.3)], 0.4) == pytest.approx(0.425)
    # only what is affordable within the limit counts
    assert area([FREE, at(0.5, 0.1)], 0.4) == pytest.approx(0.8)
    # a defense that is free of charge is affordable from the start
    assert area([FREE, at(-0.2, 0.3)], 0.4) == pytest.approx(0.3)
    # nothing at a budget of 0 to 0.2: the attacker gets everything there
    assert area([at(0.2, 0.5)], 0.4) == pytest.approx(0.75)


@given(places=PLACES)
def test_the_area_is_that_of_the_front_and_no_setting_makes_it_larger(places: list[tuple[int, int]]) -> None:
    settings = [at(x / 100, y / 100) for x, y in places]
    whole = area(settings, 0.3)
    assert 0.0 <= whole <= 1.0
    assert whole == pytest.approx(area(pareto(settings), 0.3))
    assert area([*settings, at(0.01, 0.05)], 0.3) <= whole + 1e-12


# --- advice -------------------------------------------------------------------------------------------------------


def test_the_recommended_setting_by_hand() -> None:
    # worth: 0.3 - 0.02, 0.6 - 0.10, 0.7 - 0.35
    chosen, text = recommend([FREE, at(0.02, 0.5, "a"), at(0.10, 0.2, "b"), at(0.35, 0.1, "c")])
    assert chosen is not None
    assert chosen.name == "b"
    assert "takes 60.0 points from the attacker and costs 10.0 points of test accuracy" in text


def test_no_setting_is_recommended_that_costs_more_than_it_takes() -> None:
    chosen, text = recommend([FREE, at(0.2, 0.7), at(0.1, 0.75)])
    assert chosen is None
    assert "no setting" in text
    assert recommend([FREE])[0] is None
    assert recommend([at(0.1, 0.2)])[0] is None


def test_advice_that_rests_on_overlapping_intervals_says_so() -> None:
    wide = [at(0.0, 0.8, "no defense", False, 0.2), at(0.01, 0.6, "a", True, 0.2)]
    assert "more seeds" in recommend(wide)[1]
    sure = [at(0.0, 0.8, "no defense", False, 0.05), at(0.01, 0.4, "a", True, 0.05)]
    assert "more seeds" not in recommend(sure)[1]


def test_families_are_defenses_without_their_strength() -> None:
    assert family_of("gaussian(sigma=0.1)") == "gaussian"
    assert family_of("label_only") == "label_only"
    assert family_of("clip(norm=1)+gaussian(sigma=0.1, on=message)") == "clip+gaussian"


# --- from rows ----------------------------------------------------------------------------------------------------

Make = Callable[..., Row]
ARMS = {
    "none": (0.8, 0.7),
    "gaussian(sigma=0.1)": (0.7, 0.5),
    "gaussian(sigma=0.3)": (0.5, 0.3),
    "top_k(k=1)": (0.8, 0.4),
}
"""Defense to (test accuracy, the stolen model's)."""


def shares(mean: float, count: int = 20) -> list[float]:
    return [1.0] * round(mean * count) + [0.0] * (count - round(mean * count))


def rows(make_row: Make, make_utility: Make, seeds: range = range(2)) -> list[Row]:
    found: list[Row] = []
    for seed in seeds:
        for defense, (accuracy, stolen) in ARMS.items():
            where: dict[str, Any] = {"protocol": "fedmd", "seed": seed, "model": "adamsa_cnn"}
            found.append(make_utility(defense, shares(accuracy), **where))
            for client in ("client-0", "client-1"):
                scores = {"attack_accuracy": shares(stolen), "fidelity": shares(stolen), "victim_accuracy": shares(0.8)}
                place = {**where, "defense": defense, "attack": "msa", "client": client, "round": 5}
                found.append(make_row(place, scores, baselines={"commonest": {"attack_accuracy": shares(0.1)}}))
    return found


def test_rows_of_a_sweep_become_a_frontier(make_row: Make, make_utility: Make) -> None:
    made = rows(make_row, make_utility)
    arms = arms_of(summary(made), made, lambda row: {})
    (found,) = frontiers([("fedmd", arms)])
    assert found.kind == "model"
    assert {s.name: tuple(round(v, 6) for v in s.place) for s in found.settings} == {
        "no defense": (0.0, 0.7),
        "gaussian(sigma=0.1)": (0.1, 0.5),
        "gaussian(sigma=0.3)": (0.3, 0.3),
        "top_k(k=1)": (0.0, 0.4),
    }
    assert [s.name for s in found.front] == ["top_k(k=1)", "gaussian(sigma=0.3)"]
    assert found.limit == pytest.approx(0.3)
    assert found.area == pytest.approx(0.4)
    assert dict(found.areas) == pytest.approx({"gaussian": (0.1 * 0.7 + 0.2 * 0.5) / 0.3, "top_k": 0.4})
    assert found.recommended is not None
    assert found.recommended.name == "top_k(k=1)"
    assert all(s.privacy_loss.low < s.privacy_loss.mean < s.privacy_loss.high for s in found.settings)
    (panel,) = frontier_panels([found])
    assert len(panel.marks) == 4
    curve, front = panel.lines
    # the strengths of gaussian in the order of what they take; top_k has a single one and so no curve
    way = [mark for mark in panel.marks if "gaussian" in mark.says or "no defense" in mark.says]
    assert curve.points.split() == [f"{mark.x:g},{mark.y:g}" for mark in way]
    assert front.points.count(",") == 4  # two places, one corner, and on to the edge
    assert panel.y.at(0.7) > panel.box.top, "the axis ends a little above the largest share, wherever that is"


def test_nothing_is_recommended_where_the_model_learned_nothing_to_lose(make_row: Make, make_utility: Make) -> None:
    made = rows(make_row, make_utility)
    for learned, chosen in (([0.1, 0.8], "top_k(k=1)"), ([0.1, 0.1], None)):
        arms = arms_of(summary(made), made, lambda row, way=learned: {"utility_by_round": way})
        (found,) = frontiers([("fedmd", arms)])
        assert (None if found.recommended is None else found.recommended.name) == chosen
        assert ("hardly learned" in found.advice) == (chosen is None)


def test_an_arm_with_a_name_of_its_own_is_told_apart_by_what_was_swept(make_row: Make, make_utility: Make) -> None:
    """All its strengths are called alike: the recommended setting would be one of them, and nobody could tell which."""
    made = []
    for sigma in (0.1, 0.3):
        for row in rows(make_row, make_utility):
            if row.where["defense"] == f"gaussian(sigma={sigma})":
                made.append(replace(row, where={**row.where, "defense": "shipped", "defenses.2.sigma": sigma}))
    made += [row for row in rows(make_row, make_utility) if row.where["defense"] == "none"]
    arms = arms_of(summary(made), made, lambda row: {})
    assert {arm.number: arm.title for arm in arms} == {
        1: "no defense",
        2: "shipped(sigma=0.1)",
        3: "shipped(sigma=0.3)",
    }
    (found,) = frontiers([("fedmd", arms)])
    assert found.recommended is not None
    assert found.recommended.name == "shipped(sigma=0.1)"
    assert dict(found.areas).keys() == {"shipped"}
    curves = curves_by_seed(made, "msa")
    assert [len(curve) for curve in curves["shipped"].values()] == [3, 3], "the undefended arm and two strengths"


def test_a_federation_with_one_defense_has_no_frontier(make_row: Make, make_utility: Make) -> None:
    made = [r for r in rows(make_row, make_utility) if r.where["defense"] in ("none", "top_k(k=1)")]
    assert frontiers([("fedmd", arms_of(summary(made), made, lambda row: {}))]) == []


def test_the_section_draws_and_escapes(make_row: Make, make_utility: Make) -> None:
    made = rows(make_row, make_utility)
    arms = arms_of(summary(made), made, lambda row: {})
    found = frontiers([("fed<md>", arms)])
    template: jinja2.Template = _environment().get_template("frontier.jinja")
    page = template.render(
        frontiers=found, frontier_panels=frontier_panels(found), frontier_legend=[(1, 1, "no defense")]
    )
    assert page.count('<polyline class="curve') == 1
    assert page.count('<polyline class="front"') == 1
    assert "fed&lt;md&gt;" in page
    assert "fed<md>" not in page
    assert "top_k" in page


def test_a_script_gets_the_recommended_setting_from_a_run_folder(
    make_row: Make,
    make_utility: Make,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    RunFolder(tmp_path).write_rows(rows(make_row, make_utility))
    told = fedleak(capsys, monkeypatch, "report", tmp_path, "--json").json
    (found,) = told["frontiers"]
    assert found["finding"] == "model"
    assert found["area"] == pytest.approx(0.4)
    assert found["area_up_to"] == pytest.approx(0.3)
    assert found["areas"] == pytest.approx({"gaussian": (0.1 * 0.7 + 0.2 * 0.5) / 0.3, "top_k": 0.4})
    places = {s["defense"]: (s["utility_loss"]["mean"], s["privacy_loss"]["mean"]) for s in found["settings"]}
    assert places["none"] == pytest.approx((0.0, 0.7))
    assert places["gaussian(sigma=0.1)"] == pytest.approx((0.1, 0.5))
    assert [s["defense"] for s in found["settings"] if s["on_front"]] == ["gaussian(sigma=0.3)", "top_k(k=1)"]
    assert found["recommended"]["defense"] == "top_k(k=1)"
    assert found["recommended"]["privacy_loss"]["low"] < 0.4 < found["recommended"]["privacy_loss"]["high"]
    assert "costs no test accuracy" in found["advice"]


def test_the_legend_of_the_fronts_names_the_arms_on_them(make_row: Make, make_utility: Make, tmp_path: Path) -> None:
    made = rows(make_row, make_utility)
    other = [r for r in made if r.where["defense"] in ("none", "top_k(k=1)")]
    apart = {"protocol": "dsfl"}
    renamed = {"top_k(k=1)": "label_only", "none": "none"}
    more = [replace(r, where={**r.where, **apart, "defense": renamed[str(r.where["defense"])]}) for r in other]
    RunFolder(tmp_path).write_rows([*made, *more])
    page = build_report(tmp_path).read_text(encoding="utf-8")
    fronts = page.partition('<section id="frontier"')[2].partition("</section>")[0]
    assert "label_only" in page.partition('<section id="frontier"')[0]
    assert "top_k(k=1)" in fronts
    assert "label_only" not in fronts


def test_without_a_defense_to_choose_from_a_script_gets_no_frontier(
    make_row: Make,
    make_utility: Make,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    RunFolder(tmp_path).write_rows(r for r in rows(make_row, make_utility) if r.where["defense"] == "none")
    assert fedleak(capsys, monkeypatch, "report", tmp_path, "--json").json["frontiers"] == []


# --- two defenses at the same privacy loss ------------------------------------------------------------------------


def test_the_cost_at_a_privacy_loss_by_hand() -> None:
    curve = [(0.0, 0.9), (0.1, 0.7), (0.4, 0.1)]
    assert cost_at(curve, 0.8) == pytest.approx(0.05)
    assert cost_at(curve, 0.7) == pytest.approx(0.1)
    assert cost_at(curve, 0.4) == pytest.approx(0.25)
    assert cost_at(curve, 0.05) is None
    assert cost_at(curve, 0.95) is None
    assert cost_at([], 0.5) is None


def test_curves_come_from_rows_seed_by_seed(make_row: Make, make_utility: Make) -> None:
    curves = curves_by_seed(rows(make_row, make_utility), "msa")
    assert set(curves) == {"gaussian", "top_k"}
    assert sorted(curves["gaussian"][1]) == [pytest.approx(p) for p in [(0.0, 0.7), (0.1, 0.5), (0.3, 0.3)]]
    assert curves_by_seed(rows(make_row, make_utility), "adamsa") == {}


def test_the_difference_at_matched_privacy_loss_by_hand() -> None:
    costly = {0: [(0.0, 0.8), (0.4, 0.4)], 1: [(0.0, 0.8), (0.2, 0.4)], 2: [(0.0, 0.8)]}
    cheap = {0: [(0.0, 0.8), (0.1, 0.4)], 1: [(0.0, 0.8), (0.1, 0.4)], 2: [(0.0, 0.8), (0.1, 0.4)]}
    found = matched_difference(costly, cheap, 0.6)
    # seed 0: 0.2 - 0.05, seed 1: 0.1 - 0.05; seed 2 never gets there
    assert found is not None
    assert found.mean == pytest.approx(0.1)
    assert found.n == 2
    assert found.low == pytest.approx(0.05)
    assert found.high == pytest.approx(0.15)
    assert matched_difference(costly, cheap, 0.1) is None
