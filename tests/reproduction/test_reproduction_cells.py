"""From rows to cells: names, averages, intervals, what is left out, and figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from safetensors.torch import save

from fedleak.audit.rows import Row
from fedleak.audit.store import RunFolder
from fedleak.errors import RefusedError
from fedleak.reproduction import Evidence, Table, cells, draw_figures
from fedleak.reproduction.faces import values_of
from fedleak.reproduction.figures import _drawn, curves_over_iterations
from fedleak.reproduction.table import Figure

SPEC = {"spec": {}, "scale": {"smoke": {}}}


def table(**given: Any) -> Table:
    return Table.model_validate({"title": "t", "paper": "p", "metrics": ["acc", "psnr"], **SPEC, **given})


def row(
    where: Mapping[str, Any],
    scores: Mapping[str, Sequence[float]],
    *,
    objective: float | None = None,
    artifacts: Mapping[str, str] | None = None,
) -> Row:
    full = {"attack": "dlm_plus", "dataset": "mnist", "seed": 0, "client": "client-0", **where}
    return Row("t", full, scores, 1, "ok", threshold=30.0, objective=objective, artifacts=artifacts or {})


def test_swept_paths_get_the_short_names_of_the_contract() -> None:
    made = table(rename={"protocol.epochs": "E", "data.path": "dataset"}, group_by=["attack", "dataset", "E"])
    rows = [
        row({"dataset": "imagefolder", "data.path": "lfw", "protocol.epochs": e}, {"recovered": [1.0], "psnr": [40.0]})
        for e in (1, 10)
    ]
    found, failed = cells("dlm/x", made, rows)
    assert [cell.where for cell in found if cell.metric == "acc"] == [
        {"attack": "dlm_plus", "dataset": "lfw", "E": 1},
        {"attack": "dlm_plus", "dataset": "lfw", "E": 10},
    ]
    assert found[0].label == "dlm_plus lfw E 1", "a number does not say of what"
    assert failed == []


def test_three_averages_of_the_same_images() -> None:
    """Two recovered at 40 and 50 dB, two failed at 10 and 4 dB."""
    made = table(metrics=["acc", "psnr", "psnr_success", "psnr_all"])
    rows = [
        row({"client": f"client-{at}"}, {"recovered": [float(value > 30)], "psnr": [value]})
        for at, value in enumerate((40.0, 50.0, 10.0, 4.0))
    ]
    found, _ = cells("dlm/x", made, rows)
    ours = {cell.metric: (cell.ours, cell.n) for cell in found}
    assert ours == {"acc": (50.0, 4), "psnr": (22.5, 4), "psnr_success": (45.0, 2), "psnr_all": (26.0, 4)}


def test_all_failed_is_an_uncertain_share_but_a_certain_psnr() -> None:
    """0 of 3 leaves room for a few per cent; 0 dB by definition does not become a percentage."""
    rows = [row({"client": f"client-{at}"}, {"recovered": [0.0], "psnr": [5.0]}) for at in range(3)]
    found = {cell.metric: cell for cell in cells("dlm/x", table(), rows)[0]}
    assert (found["psnr"].ours, found["psnr"].low, found["psnr"].high) == (0.0, 0.0, 0.0)
    # Clopper and Pearson: 1 - 0.025^(1/3)
    assert (found["acc"].ours, found["acc"].low) == (0.0, 0.0)
    assert found["acc"].high == pytest.approx(100 * (1 - 0.025 ** (1 / 3)))


def test_utility_has_cells_of_its_own_per_defense() -> None:
    made = table(metrics=["psnr_all", "utility"], group_by=["attack", "dataset", "defense"])
    rows = [
        row({"attack": "none", "defense": "none", "client": None}, {"utility": [1.0, 1.0, 1.0, 0.0]}),
        row({"attack": "none", "defense": "noise", "client": None}, {"utility": [1.0, 0.0, 0.0, 0.0]}),
        row({"defense": "none"}, {"psnr": [40.0], "recovered": [1.0]}),
    ]
    found, failed = cells("dlm/x", made, rows)
    assert [(c.where["attack"], c.where["defense"], c.metric, c.ours) for c in found] == [
        ("none", "none", "utility", 0.75),
        ("none", "noise", "utility", 0.25),
        ("dlm_plus", "none", "psnr_all", 40.0),
    ]
    assert failed == []


def test_without_the_statistic_the_row_of_the_federation_makes_no_cell() -> None:
    found, failed = cells("dlm/x", table(), [row({"attack": "none"}, {"utility": [1.0]})])
    assert (found, failed) == ([], [])


def test_what_has_no_number_is_listed_as_failed() -> None:
    refused = Row("t", {"attack": "dlm", "dataset": "mnist", "client": "c"}, {}, 0, "refused", reason="no broadcast")
    found, failed = cells("dlm/x", table(metrics=["acc"]), [refused])
    assert found == []
    assert {entry["reason"] for entry in failed} == {"no broadcast", "no example has this number"}


def test_a_number_that_an_attack_cannot_have_is_no_failure() -> None:
    """TBI has one network for all clients, so no picture of another client; PLI has one, and its prior beside it."""
    guesses = {"prior": {"attack_accuracy": [1.0, 0.0]}, "other_client": {"attack_accuracy": [0.0, 0.0]}}
    rows = [
        Row("t", {"attack": "tbi", "dataset": "orl", "seed": 0}, {"attack_accuracy": [1.0, 0.0]}, 2, "ok"),
        Row(
            "u",
            {"attack": "pli", "dataset": "orl", "seed": 0},
            {"attack_accuracy": [1.0, 1.0]},
            2,
            "ok",
            baselines=guesses,
        ),
    ]
    asked = table(metrics=["attack_accuracy", "other_client_accuracy", "other_client_over_prior"])
    found, failed = cells("pli/x", asked, rows)
    assert failed == []
    assert [(cell.where["attack"], cell.metric, cell.ours) for cell in found] == [
        ("tbi", "attack_accuracy", 50.0),
        ("pli", "attack_accuracy", 100.0),
        ("pli", "other_client_accuracy", 0.0),
        ("pli", "other_client_over_prior", -50.0),
    ]
    refused = Row("v", {"attack": "pli", "dataset": "orl"}, {}, 0, "refused", reason="no public set")
    _, failed = cells("pli/x", table(metrics=["other_client_accuracy"]), [refused])
    assert {entry["reason"] for entry in failed} == {"no public set", "no example has this number"}


def test_an_unknown_statistic_is_refused_by_name() -> None:
    with pytest.raises(RefusedError, match="nonsense"):
        cells("dlm/x", table(metrics=["nonsense"]), [])


def test_published_numbers_stand_only_beside_their_conditions() -> None:
    made = table(published=[{"where": {"attack": "dlm_plus"}, "acc": 92}], published_for={"dataset": ["mnist"]})
    for dataset, expected in (("mnist", 92.0), ("orl", None)):
        found, _ = cells("dlm/x", made, [row({"dataset": dataset}, {"recovered": [1.0], "psnr": [40.0]})])
        assert {c.metric: c.published for c in found} == {"acc": expected, "psnr": None}


# --- what rows point at -------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> tuple[Row, Evidence]:
    """One victim with one image: the loss falls 2000, 1000, 1 (in units of 1000); snapshots at 0 and 2."""
    folder = RunFolder(tmp_path)
    trace = folder.put(json.dumps({"steps": [0, 1, 2], "objective": [2000.0, 1000.0, 1.0]}).encode())
    original = torch.full((1, 1, 4, 4), 0.5)
    # An error of 0.1 everywhere is 20 dB, of 0.01 is 40 dB.
    shots = torch.stack([original + 0.1, original + 0.01])
    images = folder.put(
        save(
            {
                "original": original,
                "reconstruction": shots[1].clone(),
                "snapshots": shots,
                "snapshot_steps": torch.tensor([0, 2]),
            }
        )
    )
    made = row(
        {"gamma": 5.0, "preset": "paper"},
        {"psnr": [40.0], "recovered": [1.0]},
        objective=1.0,
        artifacts={"trace": trace, "images": images},
    )
    return made, Evidence([tmp_path / "elsewhere", tmp_path], {("dlm_plus", "paper"): 1000.0})


def test_losses_are_those_of_the_equation_not_of_the_optimiser(run: tuple[Row, Evidence]) -> None:
    made, evidence = run
    assert evidence.losses(made) == [(0, 2.0), (1, 1.0), (2, 0.001)]
    found, _ = cells("dlm/x", table(metrics=["loss_start", "loss_final", "first_recovered"]), [made], evidence)
    assert {cell.metric: cell.ours for cell in found} == {"loss_start": 2.0, "loss_final": 0.001, "first_recovered": 2}


def test_psnr_of_the_snapshots_by_hand(run: tuple[Row, Evidence]) -> None:
    made, evidence = run
    assert [(step, values.tolist()) for step, values in evidence.psnrs(made)] == [
        (0, [pytest.approx(20.0, abs=1e-4)]),
        (2, [pytest.approx(40.0, abs=1e-3)]),
    ]


def test_missing_artifacts_cost_a_curve_and_nothing_else(run: tuple[Row, Evidence], tmp_path: Path) -> None:
    made, _ = run
    nothing = Evidence([tmp_path / "elsewhere"])
    assert (nothing.losses(made), nothing.psnrs(made)) == ([], [])
    assert curves_over_iterations([made], "loss", nothing) is None


def test_a_damaged_artifact_is_a_missing_one(run: tuple[Row, Evidence], tmp_path: Path) -> None:
    made, _ = run
    for name in ("trace", "images"):
        (tmp_path / "artifacts" / made.artifacts[name]).write_bytes(b"{}")
    evidence = Evidence([tmp_path])
    assert (evidence.losses(made), evidence.psnrs(made)) == ([], [])


def test_a_curve_is_the_median_and_a_short_one_stays_where_it_ended(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    rows = []
    for steps, values in (([0, 1], [8.0, 4.0]), ([0, 1, 2], [6.0, 2.0, 1.0]), ([0, 1, 2], [4.0, 3.0, 2.0])):
        trace = folder.put(json.dumps({"steps": steps, "objective": values}).encode())
        rows.append(row({}, {}, artifacts={"trace": trace}))
    found = curves_over_iterations(rows, "loss", Evidence([tmp_path]))
    assert found is not None
    assert (found[0], found[1]) == ([0, 1, 2], [6.0, 3.0, 2.0])


def test_every_kind_of_figure_is_drawn_the_same_every_time(run: tuple[Row, Evidence], tmp_path: Path) -> None:
    made, evidence = run
    drawing = table(
        metrics=["psnr_all"],
        group_by=["attack", "dataset", "gamma"],
        figure=[
            {"name": "sweep", "x": "gamma", "log_x": True},
            {"name": "loss", "draw": "iterations", "y": "loss", "lines": ["gamma"], "log_y": True},
            {"name": "way", "draw": "pictures"},
            {"name": "nothing", "draw": "iterations", "lines": ["absent"]},
        ],
    )
    found, _ = cells("dlm/x", drawing, [made], evidence)
    out = [tmp_path / "one", tmp_path / "two"]
    for folder in out:
        folder.mkdir()
        written = draw_figures(drawing, found, [made], evidence, folder)
        assert [path.name for path in written] == [
            f"{name}.{kind}" for name in ("sweep", "loss", "way") for kind in ("png", "svg")
        ]
    for path in written:
        assert path.read_bytes() == (out[0] / path.name).read_bytes()


def test_every_swept_value_is_named_at_a_logarithmic_axis(run: tuple[Row, Evidence]) -> None:
    """tau 1 and 3 alone: of the powers of ten there is one."""
    made, evidence = run
    rows = [replace(made, where={**made.where, "gamma": value}) for value in (0.0, 1.0, 3.0)]
    drawing = table(metrics=["psnr_all"], group_by=["attack", "dataset", "gamma"])
    found, _ = cells("dlm/x", drawing, rows, evidence)
    drawn = _drawn(Figure(name="sweep", x="gamma", log_x=True), drawing, found, rows, evidence)
    assert [tick.get_text() for tick in drawn.axes[0].get_xticklabels()] == ["0", "1", "3"]
    pyplot.close(drawn)


def test_iterations_are_whole_numbers(run: tuple[Row, Evidence]) -> None:
    made, evidence = run
    drawn = _drawn(Figure(name="loss", draw="iterations", y="loss"), table(), [], [made], evidence)
    assert all(float(tick).is_integer() for tick in drawn.axes[0].get_xticks())
    pyplot.close(drawn)


@pytest.mark.parametrize(("rows", "images", "shown"), [(1, 20, 4), (3, 20, 4), (6, 1, 4), (2, 1, 2)])
def test_more_seeds_make_no_longer_figure(
    run: tuple[Row, Evidence], monkeypatch: pytest.MonkeyPatch, rows: int, images: int, shown: int
) -> None:
    made, evidence = run
    way = {"original": np.ones((images, 1, 4, 4)), "snapshots": np.ones((2, images, 1, 4, 4))}
    monkeypatch.setattr(evidence, "images", lambda key: {**way, "snapshot_steps": np.array([1, 2])})
    facets = [replace(made, where={**made.where, "gamma": value}) for value in (1.0, 3.0) for _ in range(rows)]
    drawn = _drawn(Figure(name="way", draw="pictures", facets=["gamma"]), table(), [], facets, evidence)
    assert len(drawn.axes[0].images) == 2 * shown
    pyplot.close(drawn)


def test_histograms_and_priors_of_faces_are_drawn_from_rows(tmp_path: Path) -> None:
    """Figures 3, 4 and 6 of pli.txt; rows of several seeds are pooled, and what is not finite is left out."""
    folder = RunFolder(tmp_path)
    pictures = {"prior": torch.full((2, 1, 4, 4), 0.2), "original": torch.full((2, 1, 4, 4), 0.8)}
    stored = {
        "images": folder.put(save(pictures)),
        "facts": folder.put_json({"similarity": {"holds the label": [0.1, 0.2], "does not": [0.7, 0.8]}}),
    }
    sure = {"server on private": torch.tensor([2.0, torch.inf]), "client on private": torch.tensor([0.5])}
    rows = [row({"attack": "pli", "seed": seed}, {}, artifacts=stored) for seed in (0, 1)]
    rows.append(row({"attack": "none"}, {}, artifacts={"entropies": folder.put(save(sure))}))
    evidence = Evidence([tmp_path])
    assert values_of(rows, "similarity", evidence)["does not"].tolist() == [0.7, 0.8, 0.7, 0.8]
    assert {name: found.tolist() for name, found in values_of(rows, "entropy", evidence).items()} == {
        "server on private": [2.0],
        "client on private": [0.5],
    }
    kinds = [("entropy", "histogram"), ("similarity", "histogram"), ("prior", "prior")]
    drawing = table(figure=[{"name": name, "draw": draw, "y": name} for name, draw in kinds])
    written = draw_figures(drawing, [], rows, evidence, tmp_path)
    assert [path.name for path in written if path.suffix == ".png"] == ["entropy.png", "similarity.png", "prior.png"]
    assert draw_figures(drawing, [], rows, Evidence([tmp_path / "elsewhere"]), tmp_path) == []


# --- the parts of a table -----------------------------------------------------------------------------------------


def test_panels_lie_over_the_scale_and_the_scales_own_panels_over_them() -> None:
    made = Table.model_validate(
        {
            "title": "t",
            "paper": "p",
            "metrics": [],
            "spec": {"model": {"name": "lenet"}, "data": {"name": "mnist"}},
            "panel": {"a": {"sweep": {"x": [1, 2, 3]}}, "b": {"model": {"name": "mlp"}}},
            "scale": {
                "smoke": {
                    "data": {"clients": 3},
                    "panel": {"a": {"sweep": {"x": [1]}}},
                    "instead": {"data": {"name": "orl"}},
                }
            },
        }
    )
    parts = made.parts("smoke")
    assert parts["a"][0] == {
        "model": {"name": "lenet"},
        "data": {"name": "mnist", "clients": 3},
        "sweep": {"x": [1]},
    }
    assert parts["b"] == (
        {"model": {"name": "mlp"}, "data": {"name": "mnist", "clients": 3}},
        {"model": {"name": "mlp"}, "data": {"name": "orl"}},
    )
    with pytest.raises(RefusedError, match="did you mean 'smoke'"):
        made.parts("smok")


def test_the_authors_evaluation_stands_beside_the_published_number_it_was_made_with(tmp_path: Path) -> None:
    facts = {"as_released": {"attack_accuracy": [1.0, 1.0, 0.0, 1.0], "ssim": [0.8] * 4}, "chosen_client_right": 0.5}
    stored = {"facts": RunFolder(tmp_path).put_json(facts)}
    made = table(
        metrics=["attack_accuracy", "as_released_accuracy", "ssim", "as_released_ssim", "owner_chosen"],
        published=[{"where": {"attack": "pli"}, "attack_accuracy": 79.0, "ssim": 0.476}],
    )
    rows = [row({"attack": "pli"}, {"attack_accuracy": [1.0, 0.0] * 2, "ssim": [0.5] * 4}, artifacts=stored)]
    found, failed = cells("pli/x", made, rows, Evidence([tmp_path]))
    assert {cell.metric: (cell.published, cell.ours) for cell in found} == {
        "attack_accuracy": (79.0, 50.0),
        "as_released_accuracy": (79.0, 75.0),
        "ssim": (0.476, 0.5),
        "as_released_ssim": (0.476, pytest.approx(0.8)),
        "owner_chosen": (None, 50.0),
    }
    assert failed == []


@pytest.mark.parametrize(
    ("numbers", "expected"), [((83.43, 80.10), 3.33), ((None, 80.10), None), ((83.43, None), None)]
)
def test_a_gap_stands_beside_that_of_the_published_numbers_where_both_are_given(
    numbers: tuple[float | None, float | None], expected: float | None
) -> None:
    names = ("victim_accuracy", "attack_accuracy")
    printed = {name: number for name, number in zip(names, numbers, strict=True) if number is not None}
    made = table(metrics=["gap"], published=[{"where": {"dataset": "mnist"}, **printed}])
    scores = {"victim_accuracy": [1.0, 1.0, 0.0, 1.0], "attack_accuracy": [1.0, 0.0, 0.0, 1.0]}
    (found,), failed = cells("adamsa/x", made, [row({"attack": "msa"}, scores)])
    assert (found.metric, found.ours, found.published) == ("gap", 25.0, expected)
    assert failed == []
