"""Every table that ships: valid at every scale, its statistics known, its published numbers within reach."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fedleak.audit.rows import UTILITY
from fedleak.audit.spec import Spec, make_spec
from fedleak.reproduction import Table, load_table, table_names
from fedleak.reproduction.cells import statistics_of
from fedleak.reproduction.statistics import STATISTICS
from fedleak.types import Predictions

EVERY = [(name, scale) for name in table_names() for scale in load_table(name).scales]
CONTRACT = {"attack", "dataset", "protocol", "defense", "E", "m", "K", "method", "tau", "gamma", "setting", "lr"}
OWN = {"model", "preset", "labels", "strength", "until", "round", "alpha", "T0", "public", "g", "norm", "init"}
OWN |= {"moments"}
"""Further keys of cells: flat, and each explained in the notes of its table."""


def specs(table: Table, scale: str, *, standing_in: bool = False) -> dict[str, Spec]:
    """The specification of every part, or the same on the data that stands in where a data set is missing."""
    parts = {panel: both[1] if standing_in else both[0] for panel, both in table.parts(scale).items()}
    return {panel: make_spec(tables) for panel, tables in parts.items() if tables is not None}


def wheres(table: Table, scale: str) -> list[dict[str, Any]]:
    """What the rows of a run would say of themselves, with the table's short names."""
    found = []
    for panel, spec in specs(table, scale).items():
        for point in spec.points:
            for choice in point.attacks:
                for arm in point.arms:
                    where = {
                        "dataset": point.data.name,
                        "model": point.model.name,
                        "protocol": point.protocol_name,
                        "defense": arm.label,
                        **point.where,
                        "attack": choice.name,
                        "preset": choice.attack.preset,
                        **choice.extra,
                        "panel": panel,
                    }
                    found.append(table.renamed(where))
    return found


def test_the_tables_of_the_issue_are_there() -> None:
    dlm = {f"dlm/fig{number}" for number in range(2, 14)} | {"dlm/table1", "dlm/table2"}
    pli = {f"pli/s{number}" for number in range(1, 10)} | {f"pli/fig{number}" for number in range(3, 12)}
    pli |= {"pli/table2", "pli/table3", "pli/fig-s1", "pli/fig-s2", "pli/fig-s3"}
    ptbi = {"ptbi/s1", "ptbi/s2", "ptbi/s3"} | {f"ptbi/fig-s{number}" for number in range(2, 9)}
    assert dlm | pli | ptbi <= set(table_names())
    fedavg = {f"fedavg_leakage/{one}" for one in ("table1", "table2", "table3", "table4", "table6", "table7", "table8")}
    assert fedavg | {"fedavg_leakage/fig3", "fedavg_leakage/strong"} <= set(table_names())


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_a_table_is_a_valid_specification_at_every_scale(name: str, scale: str) -> None:
    table = load_table(name)
    for spec in (*specs(table, scale).values(), *specs(table, scale, standing_in=True).values()):
        assert spec.points
        assert all(point.attacks for point in spec.points)


@pytest.mark.parametrize("name", table_names())
def test_every_scale_is_there_and_the_full_one_has_seeds_for_an_interval(name: str) -> None:
    table = load_table(name)
    assert {"smoke", "full"} <= set(table.scales)
    assert all(len(spec.seeds) >= 3 for spec in specs(table, "full").values())
    # The logit papers' smoke runs have to show differences of few people; the other two are not of that smoke setting.
    seeds = 3 if name.startswith(("pli/", "ptbi/")) and name not in ("pli/lfw", "pli/s9") else 1
    assert all(len(spec.seeds) == seeds for spec in specs(table, "smoke").values())


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_the_statistics_are_known_and_their_metrics_are_asked_for(name: str, scale: str) -> None:
    table = load_table(name)
    needed = {metric for statistic in statistics_of(name, table).values() for metric in statistic.reads}
    for spec in specs(table, scale).values():
        assert needed <= set(spec.metrics)


@pytest.mark.parametrize("name", table_names())
def test_notes_name_scales_and_tables_that_there_are(name: str) -> None:
    table = load_table(name)
    assert set(re.findall(r"--scale\s+(\w+)", table.notes)) <= set(table.scales)
    assert set(re.findall(r"\b(?:pli|ptbi|dlm|fedavg_leakage|adamsa)/[\w-]+(?!\S*\.)", table.notes)) <= set(
        table_names()
    )


@pytest.mark.parametrize("name", table_names())
def test_a_cell_says_where_it_stands_in_the_words_of_the_contract(name: str) -> None:
    table = load_table(name)
    assert {"attack", "dataset"} <= set(table.group_by)
    assert set(table.group_by) <= CONTRACT | OWN
    assert len(set(table.group_by)) == len(table.group_by)


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_what_is_swept_tells_cells_apart(name: str, scale: str) -> None:
    """Two rows of one seed and client that differ in what was tried must not fall into one cell."""
    table = load_table(name)
    keys = [tuple(where.get(key) for key in table.group_by) for where in wheres(table, scale)]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", table_names())
def test_published_numbers_stand_beside_cells_that_a_full_run_makes(name: str) -> None:
    table = load_table(name)
    reachable = wheres(table, "full")
    paper = name.partition("/")[0]
    for entry in table.published:
        numbers = entry.model_extra or {}
        assert numbers
        assert set(numbers) <= set(table.metrics) <= set(STATISTICS[paper])
        # Numbers of data sets that are not to be had are kept beside the others.
        if entry.where.get("dataset") in ("lag", "facescrub"):
            continue
        hits = [w for w in reachable if all(w.get(key) == value for key, value in entry.where.items())]
        assert hits, f"nothing of a full run is {entry.where}"
        for metric, value in numbers.items():
            assert table.published_number(hits[0], metric) == value


@pytest.mark.parametrize("name", table_names())
def test_a_figure_draws_what_its_table_has(name: str) -> None:
    table = load_table(name)
    reachable = wheres(table, "full")
    for figure in table.figures:
        if figure.draw == "sweep":
            assert figure.y in table.metrics
            assert {figure.x, *figure.lines, *figure.facets} <= set(table.group_by)
        elif figure.draw == "iterations":
            assert figure.y in ("loss", "psnr")
        elif figure.draw == "histogram":
            assert figure.y in ("entropy", "similarity")
        keys = {*figure.lines, *([figure.x] if figure.x else [])}
        assert any(keys <= set(where) for where in reachable), f"{figure.name}: nothing has {keys}"


@pytest.mark.parametrize("name", table_names())
def test_tables_with_defenses_price_them(name: str) -> None:
    table = load_table(name)
    parts = specs(table, "full").values()
    defended = any(defense != "identity" for s in parts for p in s.points for a in p.arms for defense in a.names)
    assert defended == ("utility" in table.metrics)
    if defended:
        for spec in (*parts, *specs(table, "smoke").values()):
            for point in spec.points:
                if point.protocol.sends is Predictions:
                    continue  # the attacks on predictions read all rounds, and clients train with all they have
                assert point.protocol.rounds > point.protocol.attacked_round
                # DLM attacks one image of a client that trains on many; FedAvg leakage all that a client holds.
                assert point.protocol.examples == (1 if name.startswith("dlm/") else None)
        assert UTILITY not in [p.where.get("attack") for p in table.published]


@pytest.mark.parametrize(
    ("one", "other", "panels"),
    [
        ("dlm/fig2", "dlm/fig11", ("lenet", "mlp")),
        ("dlm/fig3", "dlm/fig12", ("sgd",)),
        ("dlm/fig4", "dlm/fig9", ("gaussian",)),
        ("dlm/fig4", "dlm/fig10", ("sparsity",)),
        ("dlm/fig9", "dlm/fig10", ("laplace",)),
    ],
)
def test_figures_of_the_same_trials_share_them_in_one_run_folder(one: str, other: str, panels: tuple[str, ...]) -> None:
    mine, theirs = load_table(one).parts("full"), load_table(other).parts("full")
    assert [mine[panel] for panel in panels] == [theirs[panel] for panel in panels]
