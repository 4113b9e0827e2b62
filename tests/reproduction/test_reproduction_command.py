"""`fedleak reproduce` from end to end, on a table small enough for a few seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from command_line import fedleak
from fedleak.commands import reproduce
from fedleak.reproduction import Table

TINY: dict[str, Any] = {
    "title": "tiny",
    "paper": "none",
    "metrics": ["psnr_all", "loss_final", "utility"],
    "group_by": ["attack", "dataset", "defense", "setting", "strength"],
    "rename": {"defenses.0.variance": "strength", "defenses.0.fraction": "strength", "panel": "setting"},
    "figure": [
        {"name": "sweep", "x": "strength", "facets": ["setting"]},
        {"name": "loss", "draw": "iterations", "y": "loss", "lines": ["strength"], "facets": ["setting"]},
        {"name": "way", "draw": "pictures", "facets": ["setting"]},
    ],
    "spec": {
        "metrics": ["psnr", "recovered"],
        "model": {"name": "mlp", "hidden": 4},
        "protocol": {"name": "fedavg", "rounds": 2, "examples": 1, "lr": 0.1},
        "attacks": [{"name": "dlm_plus", "steps": 3, "restarts": 0, "factor": 10.0}],
    },
    "panel": {
        "noise": {
            "defenses": [{"name": "gaussian", "variance": 0.0}],
            "sweep": {"defenses.0.variance": [0.0, 1e-4]},
        },
        "sparsity": {
            "defenses": [{"name": "sparsify", "fraction": 0.0, "of": "weights"}],
            "sweep": {"defenses.0.fraction": [0.5]},
        },
    },
    "scale": {
        "smoke": {
            "data": {"name": "mnist", "clients": 2},
            "instead": {"data": {"name": "orl", "size": 8, "clients": 2}},
        }
    },
}


def test_panels_become_cells_figures_and_a_run_folder_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "load_table", lambda name: Table.model_validate(TINY))
    empty = tmp_path / "no data here"
    empty.mkdir()
    out = tmp_path / "run"
    order = ("reproduce", "dlm/tiny", "--data", empty, "--out", out, "--device", "cpu", "--jobs", 1, "--json")
    answer = fedleak(capsys, monkeypatch, *order)
    assert answer.code == 0, answer.err
    assert "using orl instead" in answer.err
    assert answer.json["failed"] == []
    found = {
        (c["where"]["attack"], c["where"]["setting"], c["where"]["strength"], c["metric"]): c
        for c in answer.json["cells"]
    }
    for setting, strength in (("noise", 0.0), ("noise", 1e-4), ("sparsity", 0.5)):
        assert found["dlm_plus", setting, strength, "psnr_all"]["n"] == 2
        # A difference of unit vectors, squared: at most 4, whatever the optimiser was given.
        assert 0 <= found["dlm_plus", setting, strength, "loss_final"]["ours"] <= 4
        assert 0 <= found["none", setting, strength, "utility"]["ours"] <= 1
    assert all(cell["published"] is None for cell in answer.json["cells"])
    for panel in ("noise", "sparsity"):
        assert (out / panel / "rows.jsonl").is_file()
        assert (out / panel / "report.html").is_file()
    for name in ("sweep", "loss", "way"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (out / f"{name}.svg").read_bytes()

    again = fedleak(capsys, monkeypatch, *order)
    assert again.json == answer.json


def test_only_some_cells_today_and_the_rest_another_day(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--only` leaves trials as they are: what was chosen first is not done again when everything is."""
    spec = {**TINY["spec"], "protocol": {**TINY["spec"]["protocol"], "rounds": 1}}
    spec["attacks"] = [{**spec["attacks"][0], "steps": steps} for steps in (1, 2)]
    rename = {"attack.steps": "steps", "protocol.epochs": "E"}
    keys = ["attack", "dataset", "E", "steps", "seed"]
    scale = {"smoke": {**TINY["scale"]["smoke"], "sweep": {"protocol.epochs": [1, 2]}}}
    table = {**TINY, "figure": [], "panel": {}, "spec": spec, "rename": rename, "group_by": keys, "scale": scale}
    monkeypatch.setattr(reproduce, "load_table", lambda name: Table.model_validate(table))
    (tmp_path / "no data here").mkdir()
    order = ("reproduce", "dlm/tiny", "--data", tmp_path / "no data here", "--device", "cpu", "--jobs", 1)

    def cells_of(folder: str, *more: object) -> dict[tuple[object, ...], float]:
        answer = fedleak(capsys, monkeypatch, *order, "--out", tmp_path / folder, "--json", *more)
        assert (answer.code, answer.json["failed"]) == (0, []), answer.err
        psnr = [c for c in answer.json["cells"] if c["metric"] == "psnr_all"]
        return {(c["where"]["E"], c["where"]["steps"], c["where"]["seed"]): c["ours"] for c in psnr}

    only = ("--only", "E=2", "--only", "steps=1")
    first = cells_of("run", *only)
    assert set(first) == {(2, 1, 0)}
    names = {file.name for file in (tmp_path / "run").rglob("*") if "trials" in file.parts}
    assert set(cells_of("run", *only, "--seeds", 2)) == {(2, 1, 0), (2, 1, 1)}
    assert set(cells_of("run", "--only", "E=[1,2]", "--only", "seed=0")) == {(e, s, 0) for e in (1, 2) for s in (1, 2)}
    everything = cells_of("run", "--seeds", 2)
    assert set(everything) == {(e, s, seed) for e in (1, 2) for s in (1, 2) for seed in (0, 1)}
    assert everything == cells_of("at once", "--seeds", 2)
    assert first.items() <= everything.items()
    assert names <= {file.name for file in (tmp_path / "run").rglob("*")}


@pytest.mark.parametrize(
    ("only", "says"),
    [
        ("setting=nois", "no trial has nois; there are noise, sparsity"),
        ("settin=noise", "did you mean 'setting'?"),
        ("setting", "not of the form key.path=value"),
    ],
)
def test_only_what_is_not_there_is_refused_with_what_is(
    only: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "load_table", lambda name: Table.model_validate(TINY))
    (tmp_path / "no data here").mkdir()
    order = ("reproduce", "dlm/tiny", "--data", tmp_path / "no data here", "--out", tmp_path / "run")
    answer = fedleak(capsys, monkeypatch, *order, "--only", only)
    assert answer.code == 2
    assert says in answer.err
