"""Published numbers stand beside a cell where the conditions are those of the table, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from command_line import fedleak
from fedleak.audit.plan import make_plan
from fedleak.audit.rows import Row
from fedleak.audit.spec import make_spec
from fedleak.audit.toml import parse_assignment
from fedleak.commands import reproduce
from fedleak.reproduction import Table, under_other_conditions

TABLE: dict[str, Any] = {
    "title": "tiny",
    "paper": "none",
    "metrics": ["acc"],
    "group_by": ["attack", "dataset", "E"],
    "rename": {"protocol.epochs": "E"},
    "published": [
        {"where": {"attack": "dlm_plus", "E": 1}, "acc": 90.0},
        {"where": {"attack": "dlm_plus", "E": 2}, "acc": 80.0},
        {"where": {"attack": "dlm"}, "acc": 60.0},
    ],
    "paired": [{"name": "over_dlm", "metric": "acc", "against": "dlm"}],
    "spec": {
        "metrics": ["psnr", "recovered"],
        "data": {"name": "orl", "size": 8, "clients": 2},
        "model": {"name": "mlp", "hidden": 4},
        "protocol": {"name": "fedavg", "rounds": 1, "examples": 1, "lr": 0.1},
        "sweep": {"protocol.epochs": [1, 2]},
        "attacks": [
            {"name": "dlm_plus", "steps": 2, "restarts": 0},
            {"name": "dlm", "steps": 2, "restarts": 0},
        ],
    },
    "scale": {"smoke": {}},
}
EVERY = {(attack, epochs) for attack in ("dlm_plus", "dlm", "none") for epochs in (1, 2)}


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ("seeds=[3]", set()),
        ("time_limit=900", set()),
        ("metrics=['psnr']", set()),
        # Parts of the table, as they are there.
        ("sweep={'protocol.epochs'=[2]}", set()),
        ("attacks=[{name='dlm',steps=2,restarts=0}]", set()),
        # A value that the table does not have; and one attack that is another, to the federation's utility nothing.
        ("sweep={'protocol.epochs'=[1,3]}", {(attack, 3) for attack in ("dlm_plus", "dlm", "none")}),
        ("attacks.0.steps=1", {("dlm_plus", 1), ("dlm_plus", 2)}),
        ("protocol.lr=0.2", EVERY),
        ("data.size=9", EVERY),
        ("model.hidden=5", EVERY),
        ("defenses=[{name='gaussian',sigma=0.0}]", EVERY),
        ("threshold=20.0", EVERY),
    ],
)
def test_what_is_under_other_conditions_than_the_table(
    change: str, changed: set[tuple[str, int]], tmp_path: Path
) -> None:
    own, ran = make_spec(TABLE["spec"]), make_spec(TABLE["spec"], [parse_assignment(change)])
    rows = [
        Row(trial.key, {**trial.where(), "client": client}, {}, 0, "ok")
        for trial in make_plan(ran, tmp_path, "cpu").trials
        for client in ("client-0", "client-1")
    ]
    found = under_other_conditions(rows, ran, own)
    assert {(row.where["attack"], row.where["protocol.epochs"]) for row in rows if row.trial in found} == changed


def test_a_published_number_is_for_the_conditions_of_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "load_table", lambda name: Table.model_validate(TABLE))
    order = ("reproduce", "dlm/tiny", "--out", tmp_path / "run", "--device", "cpu", "--jobs", 1, "--json")
    said = "--set: where it changes the conditions of a cell, no published number stands beside it"

    def published(*changes: str) -> tuple[dict[tuple[str, int, str], float | None], bool]:
        answer = fedleak(capsys, monkeypatch, *order, *changes)
        assert answer.code == 0, answer.err
        cells = answer.json["cells"]
        return {(c["where"]["attack"], c["where"]["E"], c["metric"]): c["published"] for c in cells}, said in answer.err

    own = {("dlm_plus", 1, "acc"): 90.0, ("dlm", 1, "acc"): 60.0, ("dlm_plus", 1, "over_dlm"): 30.0}
    own |= {("dlm_plus", 2, "acc"): 80.0, ("dlm", 2, "acc"): 60.0, ("dlm_plus", 2, "over_dlm"): 20.0}
    assert published() == (own, False)
    # The other attack keeps its numbers, but the difference between the two was not published.
    other = {at: None if at[0] == "dlm_plus" else number for at, number in own.items()}
    assert published("--set", "attacks.0.steps=1") == (other, True)
