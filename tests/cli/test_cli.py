"""The command line as users script against it: streams, JSON, exit codes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from command_line import Answer, fedleak
from fedleak.audit.toml import dumps
from fedleak.commands.rules import in_words

SPEC = {
    "data": {"name": "orl", "size": 8, "clients": 3},
    "model": {"name": "mlp", "hidden": 6},
    "protocol": {"name": "fedavg", "rounds": 2, "examples": 1},
    "defenses": [{"name": "none"}, {"arm": "shipped", "name": "gaussian", "sigma": 9.0}],
    "attacks": [{"name": "dlm_plus", "steps": 4, "restarts": 0}],
}

Run = Callable[..., Answer]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDLEAK_DATA", raising=False)
    return lambda *arguments: fedleak(capsys, monkeypatch, *arguments)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(dumps(SPEC))
    return path


def test_audit_prints_a_table_and_the_path_of_the_report(run: Run, spec: Path) -> None:
    answer = run("audit", spec, "--jobs", 1)
    assert answer.code == 0, answer.err
    assert "runs/small/report.html" in answer.out
    assert "dlm_plus" in answer.out
    for name in ("spec.toml", "rows.jsonl", "report.html", "artifacts", "transcripts"):
        assert (Path("runs/small") / name).exists()


def test_audit_json_is_exactly_one_document(run: Run, spec: Path) -> None:
    for more in ((), ("--quiet",)):
        answer = run("audit", spec, "--json", "--jobs", 1, *more)
        assert answer.code == 0, answer.err
        assert answer.json["schema"] == 1
        assert len(answer.json["rows"]) == 8
    assert answer.err == ""


def test_seed_and_set_change_the_run(run: Run, spec: Path) -> None:
    rows = run("audit", spec, "--json", "--seed", 3, "--set", "attacks.0.steps=2", "--jobs", 1).json["rows"]
    assert {row["where"]["seed"] for row in rows} == {3}
    assert "steps = 2" in Path("runs/small/spec.toml").read_text()


def test_a_gate_fires_with_exit_code_3_after_the_report(run: Run, spec: Path) -> None:
    answer = run("audit", spec, "--fail-above", "psnr=-100", "--junit", "junit.xml", "--jobs", 1)
    assert answer.code == 3
    assert "gate crossed: psnr=" in answer.err
    assert Path("runs/small/report.html").is_file()
    suite = ElementTree.parse("junit.xml").getroot()
    assert suite.get("failures") == "6"
    assert run("audit", spec, "--fail-above", "psnr=200", "--jobs", 1).code == 0


def test_a_gate_looks_at_the_deployed_arm_only(run: Run, spec: Path) -> None:
    spec.write_text(dumps({**SPEC, "deployment": {"arm": "shipped"}}))
    run("audit", spec, "--fail-above", "psnr=-100", "--junit", "junit.xml", "--jobs", 1)
    cases = ElementTree.parse("junit.xml").getroot().findall("testcase")
    assert len(cases) == 4
    assert all("shipped" in (case.get("classname") or "") for case in cases)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["audit", "nowhere.toml"], "cannot be read (No such file or directory); give a TOML file"),
        (["audit", "--device", "tpu"], "choose auto, cpu or cuda"),
        (["audit", "--fail-above", "recovered"], "METRIC=VALUE"),
        (["audit", "--fail-above", "recoverd=0.1"], "did you mean 'recovered'?"),
        (["audit", "--fail-above", "leaks=0.1"], "unknown metric 'leaks'; measured here: psnr, ssim, mse, recovered,"),
        (["audit", "--fail-above", "lpips=0.1"], "does not measure 'lpips'"),
        (["audit", "--set", "attacks.0.stepz=3"], "did you mean 'steps'?"),
        (["audit", "--set", "model.name=os:getcwd"], "--allow-code"),
        (["audit", "--data", "nowhere"], "nowhere"),
        (["attack", "nowhere", "--attack", "dlg"], "not a folder"),
        (["attack", "nowhere", "--attack", "dlgg"], "did you mean 'dlg'?"),
        (["attack", "nowhere", "--attack", "dlg", "--set", "steps=-1"], "steps"),
        (["reproduce", "dlm/table9"], "fedleak list tables"),
        (["reproduce", "dlm"], "a paper; choose one of its tables: dlm/conditions, dlm/fig2,"),
        (["reproduce", "dlm/table1", "--scale", "huge"], "choose one of"),
        (["list", "attack"], "did you mean 'attacks'?"),
        (["show", "attack", "dlgg"], "did you mean 'dlg'?"),
        (["show", "thing", "dlg"], "choose one of attack, defense, protocol, dataset, model, metric, table, spec"),
        (["show", "atack", "dlg"], "did you mean 'attack'?"),
        (["show", "data", "orl"], "did you mean 'dataset'?"),
        (["report", "nowhere"], "not a run folder"),
        (["check", "nowhere.toml"], "cannot be read"),
        (["nonsense"], "No such command"),
        (["audit", "--jobs", "0"], "--jobs"),
    ],
)
def test_a_users_mistake_is_one_message_and_exit_code_2(run: Run, arguments: list[str], words: str) -> None:
    answer = run(*arguments)
    assert answer.code == 2, answer.out + answer.err
    assert words in answer.err
    assert answer.out == ""
    assert "Traceback" not in answer.err


def test_progress_and_check_count_in_words(run: Run, spec: Path) -> None:
    said = run("audit", spec, "--jobs", 1, "--set", "defenses=[]").err
    assert "2 trials; 1 federation to simulate; 1 at a time\n" in said
    assert "orl fedavg, no defense, dlm_plus: " in said
    assert "orl fedavg, no defense: test accuracy " in said
    checked = run("check", spec).out
    assert checked == f"{spec}: fine. 1 federation setting, 2 arms, 1 seed: 2 attack trials\n"


def test_a_file_is_no_run_folder(run: Run, spec: Path) -> None:
    Path("a_file").write_text("")
    answer = run("audit", spec, "--out", "a_file")
    assert answer.code == 2
    assert "a_file: cannot be written to (it is a file); choose another folder with --out" in answer.err
    assert Path("a_file").read_text() == ""


def test_attack_on_a_recording_with_and_without_the_truth(run: Run, spec: Path) -> None:
    run("audit", spec, "--jobs", 1)
    recording = sorted(Path("runs/small/transcripts").iterdir())[0]
    truth = Path("runs/small/truths") / recording.name
    judged = run("attack", recording, "--attack", "dlm_plus", "--set", "steps=2", "--truth", truth, "--json")
    assert judged.code == 0, judged.err
    assert all(len(row["scores"]["psnr"]) == 1 for row in judged.json["rows"])
    assert all(row["seconds"] > 0 and "" < row["started"] <= row["finished"] for row in judged.json["rows"])
    mistaken = run("attack", recording, "--attack", "dlm_plus", "--truth", spec)
    assert mistaken.code == 2
    assert "truth.json is missing; give the folder that holds truth.json" in mistaken.err
    rows = Path("runs/small/rows.jsonl").read_bytes()
    elsewhere = run("attack", recording, "--attack", "dlm_plus", "--set", "steps=2", "--out", "runs/small")
    assert elsewhere.code == 2
    assert "--out=runs/small: holds an audit, whose rows this would replace; give another folder" in elsewhere.err
    assert Path("runs/small/rows.jsonl").read_bytes() == rows
    blind = run("attack", recording, "--attack", "dlm_plus", "--set", "steps=2", "--out", "blind", "--json")
    assert all(row["scores"] == {} and row["objective"] is not None for row in blind.json["rows"])
    assert len(list(Path("blind/pictures").glob("*.png"))) == 3
    assert "no score" in run("attack", recording, "--attack", "dlm_plus", "--set", "steps=2").out


def test_attack_refuses_code_without_importing_it(run: Run, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("audit", spec, "--jobs", 1)
    recording = sorted(Path("runs/small/transcripts").iterdir())[0]
    Path("trap.py").write_text("from pathlib import Path\nPath('sprung').touch()\nNet = None\n")
    monkeypatch.syspath_prepend(".")
    answer = run("attack", recording, "--attack", "dlg", "--model", "trap:Net")
    assert answer.code == 2
    assert "--allow-code" in answer.err
    assert not Path("sprung").exists()
    answer = run("attack", recording, "--attack", "dlg", "--model", "trap:Net", "--allow-code")
    assert answer.code == 2
    assert Path("sprung").exists()
    sys.modules.pop("trap", None)


def test_attack_with_a_network_of_ones_own(run: Run, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("audit", spec, "--jobs", 1)
    recording = sorted(Path("runs/small/transcripts").iterdir())[0]
    Path("my_net.py").write_text(
        "from torch import nn\ndef Net():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 40))\n"
    )
    monkeypatch.syspath_prepend(".")
    own = ("--model", "my_net:Net", "--allow-code")
    answer = run("attack", recording, "--attack", "dlm_plus", "--set", "steps=2", *own, "--json")
    assert answer.code == 0, answer.err
    assert {row["status"] for row in answer.json["rows"]} == {"ok"}
    sys.modules.pop("my_net", None)


def test_list_attacks_says_what_each_reads_needs_and_yields(run: Run) -> None:
    found = {entry["name"]: entry for entry in run("list", "attacks", "--json").json}
    assert {"name", "paper", "reads", "needs", "yields"} <= set(found["dlm_plus"])
    assert found["dlm_plus"]["reads"] == ["gradients", "weights"]
    assert found["dlm_plus"]["needs"] == ["samples"]
    assert found["dlm_plus"]["yields"] == "reconstruction"


def test_people_read_words_for_what_an_attack_yields(run: Run) -> None:
    assert "pictures of classes" in run("list", "attacks").out
    assert "yields: copies of models\n" in run("show", "attack", "msa").out
    assert run("show", "attack", "msa", "--json").json["yields"] == "stolenmodels"


@pytest.mark.parametrize("kind", ["attacks", "defenses", "protocols", "datasets", "models", "metrics", "tables"])
def test_list_and_show_every_kind(run: Run, kind: str) -> None:
    entries = run("list", kind, "--json").json
    assert entries
    assert run("list", kind).code == 0
    for entry in entries:
        assert run("show", kind[:-1], entry["name"]).code == 0
        assert run("show", kind[:-1], entry["name"], "--json").json["name"] == entry["name"]
    assert set(run("list", "--json").json) >= {kind}


def test_show_says_rules_in_words_and_unfolds_inner_tables(run: Run) -> None:
    shown = run("show", "dataset", "orl").out
    assert "clients = 10  [a whole number above 0]" in shown
    assert "partition = 'iid'  [iid or by_class or dirichlet or by_writer]" in shown
    assert "public.targets = None" in shown
    assert "{" not in shown
    attack = run("show", "attack", "dlm_plus").out
    assert "restarts = " in attack
    assert "[a whole number at least 0]" in attack


def test_show_says_what_every_preset_sets(run: Run) -> None:
    shown = run("show", "attack", "fedavg_simulation").out
    assert "steps = 300" in shown  # the default preset's
    assert "preset released: steps = 400, distance = 'layered_l2', " in shown
    assert "preset released, colour pictures: lr = 0.1, decay = 0.997, " in shown
    values = run("show", "attack", "fedavg_simulation", "--json").json["preset_values"]
    assert values["paper, grey pictures"]["lambda_inv"] == 1000.0
    assert "preset paper: client_at = 'paper'\n" in run("show", "attack", "label_counts").out


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, "a number at least 0 and below 1"),
        ({"type": "array", "items": {"type": "integer"}}, "a list, each a whole number"),
        ({"anyOf": [{"$ref": "#/$defs/PublicSpec"}, {"type": "null"}]}, "a table, see below, or none"),
        ({"const": "paper"}, "paper"),
        ({"type": "object"}, "a table"),
        ({}, "any value"),
    ],
)
def test_rules_in_words(schema: dict[str, Any], words: str) -> None:
    assert in_words(schema) == words


def test_show_spec_default_is_a_specification(run: Run) -> None:
    Path("mine.toml").write_text(run("show", "spec", "default").out)
    assert run("check", "mine.toml").code == 0


def test_check_json_lists_the_problems(run: Run, spec: Path) -> None:
    assert run("check", spec, "--json").json["ok"] is True
    answer = run("check", spec, "--set", "attacks.0.steps=-1", "--json")
    assert answer.code == 2
    assert answer.json["problems"][0]["path"] == "attacks.0.steps"


def test_report_is_built_again_from_rows(run: Run, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("audit", spec, "--jobs", 1)
    page = Path("runs/small/report.html")
    before = page.read_bytes()
    page.unlink()
    assert run("report", "runs/small").code == 0
    assert page.read_bytes() == before
    with monkeypatch.context() as patched:
        patched.setattr("os.access", lambda path, mode: mode != os.W_OK)  # for root no mode of a folder does it
        answer = run("report", "runs/small")
    assert (answer.code, page.read_bytes()) == (2, before)
    assert "run=runs/small: not yours to write to; copy the folder" in answer.err


def test_reproduce_prints_theirs_and_ours(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedleak import reproduction
    from fedleak.commands import reproduce

    table = reproduction.load_table("dlm/table1")
    quick = [{**entry, "steps": 2, "restarts": 0} for entry in table.spec["attacks"]]
    smoke = {key: value for key, value in table.scales["smoke"].items() if key != "attacks"}
    small = table.model_copy(update={"spec": {**table.spec, "attacks": quick}, "scales": {"smoke": smoke}})
    monkeypatch.setattr(reproduce, "load_table", lambda name: small)
    answer = run("reproduce", "dlm/table1", "--json", "--jobs", 1)
    assert answer.code == 0, answer.err
    assert answer.json["table"] == "dlm/table1"
    assert answer.json["scale"] == "smoke"
    for cell in answer.json["cells"]:
        assert set(cell) == {"where", "metric", "published", "ours", "low", "high", "n"}
        assert cell["where"]["dataset"] == "orl", "without a data folder the faces stand in, under their own name"
        assert cell["published"] is None
        assert cell["low"] <= cell["ours"] <= cell["high"]
    assert {c["where"]["attack"] for c in answer.json["cells"]} == {"dlg", "cosine", "dlm", "dlm_plus"}
    assert "using orl instead" in answer.err
    assert "theirs" in run("reproduce", "dlm/table1", "--jobs", 1).out
    assert "dlm/table1" in [entry["name"] for entry in json.loads(run("reproduce", "--list", "--json").out)]


def test_published_numbers_stand_beside_the_papers_data_sets_only() -> None:
    from fedleak.reproduction import load_table

    table = load_table("dlm/table1")
    assert table.published_number({"attack": "dlm_plus", "dataset": "mnist"}, "acc") == 92
    assert table.published_number({"attack": "dlm_plus", "dataset": "orl"}, "acc") is None
    assert table.published_number({"attack": "dlg", "dataset": "mnist"}, "psnr_all") is None


def test_disclosed_values_that_cannot_be_right_are_refused_or_the_clients_are_marked(run: Run, spec: Path) -> None:
    run("audit", spec, "--jobs", 1)
    recording = sorted(Path("runs/small/transcripts").iterdir())[0]
    counts = ("attack", recording, "--attack", "label_counts", "--set", "dummies=20")
    answer = run(*counts, "--known", "lr=0")
    assert (answer.code, "known=lr=0: must be a number above 0" in answer.err) == (2, True)
    marked = run(*counts, "--known", "lr=1e-9")
    assert marked.code == 0
    assert "client-0: disclosed values contradict the update" in " ".join(marked.out.split())
    simulation = ("attack", recording, "--attack", "fedavg_simulation", "--set", "labels=known", "--set", "steps=1")
    answer = run(*simulation, "--known", "label_counts=[1, 2]", "--out", "refused", "--json")
    assert answer.code == 2
    assert "no client could be attacked: client-0: label_counts has 2 entries" in answer.err
    assert {row["status"] for row in answer.json["rows"]} == {"refused"}
    assert Path("refused/rows.jsonl").is_file()


def test_a_recording_that_is_damaged_is_one_clear_error(run: Run, spec: Path) -> None:
    run("audit", spec, "--jobs", 1)
    recording = sorted(Path("runs/small/transcripts").iterdir())[0]
    with (recording / "round-0001.safetensors").open("r+b") as file:
        file.truncate(100)
    answer = run("attack", recording, "--attack", "dlg")
    assert answer.code == 2
    assert "round-0001.safetensors: 100 bytes" in answer.err
