"""How commands end: one JSON document whatever happens, one message for a person, nothing lost, no traceback."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from command_line import Answer, fedleak
from fedleak.audit.rows import Row
from fedleak.audit.toml import dumps
from fedleak.commands import audit
from fedleak.commands.gate import write_junit

SPEC: dict[str, Any] = {
    "metrics": ["psnr", "recovered"],
    "data": {"name": "orl", "size": 8, "clients": 3},
    "model": {"name": "mlp", "hidden": 6},
    "protocol": {"name": "fedavg", "rounds": 2, "examples": 1},
    "attacks": [{"name": "dlm_plus", "steps": 4, "restarts": 0}],
}
Run = Callable[..., Answer]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDLEAK_DATA", raising=False)
    Path("small.toml").write_text(dumps(SPEC))
    return lambda *arguments: fedleak(capsys, monkeypatch, *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["audit", "nowhere.toml"],
        ["audit", "--jobs", "0"],
        ["audit", "--nonsense"],
        ["audit", "small.toml", "--set", "attacks.0.stepz=1"],
        ["attack", "nowhere", "--attack", "dlg"],
        ["attack", "nowhere"],
        ["reproduce", "dlm/table9"],
        ["list", "nonsense"],
        ["show", "attack", "nonsense"],
        ["report", "nowhere"],
        ["bench", "nonsense"],
    ],
)
def test_an_error_is_one_json_document_too(run: Run, arguments: list[str]) -> None:
    for quiet in ([], ["--quiet"] if arguments[0] in ("audit", "attack", "reproduce") else []):
        answer = run(*arguments, "--json", *quiet)
        assert answer.code == 2
        assert answer.json["exit_code"] == 2
        assert answer.json["error"]
        assert answer.json["error"] in answer.err, "a person reads the same on stderr"


def test_the_problems_of_a_specification_are_listed_for_a_script(run: Run) -> None:
    answer = run("audit", "small.toml", "--set", "attacks.0.stepz=1", "--json")
    assert answer.json["problems"] == [{"path": "attacks.0.stepz", "message": "unknown key; did you mean 'steps'?"}]
    problem = run("check", "nowhere.toml", "--json").json["problems"][0]
    assert problem["message"].endswith("cannot be read (No such file or directory); give a TOML file")


@pytest.mark.parametrize(
    ("happens", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "what was finished is kept"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "rows.jsonl"), 2, "rows.jsonl: cannot be used"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 1, "out of memory: DefaultCPUAllocator"),
    ],
)
def test_what_stops_a_run_is_one_message(
    run: Run, monkeypatch: pytest.MonkeyPatch, happens: BaseException, code: int, words: str
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise happens

    monkeypatch.setattr(audit, "run_audit", stopped)
    for more in ((), ("--json",)):
        answer = run("audit", "small.toml", *more)
        assert answer.code == code
        assert words in answer.err
        assert "Traceback" not in answer.err
    assert words in answer.json["error"]


def test_a_mistake_of_ours_shows_where_and_ends_with_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "run_audit", lambda *_, **__: 1 / 0)
    answer = run("audit", "small.toml", "--json")
    assert answer.code == answer.json["exit_code"] == 1
    assert "Traceback" in answer.err
    assert "ZeroDivisionError" in answer.json["error"]


def test_a_junit_file_that_cannot_be_written_is_refused_before_the_run(run: Run) -> None:
    Path("folder").mkdir()
    for place in ("folder", "small.toml/junit.xml"):
        answer = run("audit", "small.toml", "--junit", place)
        assert answer.code == 2
        assert f"--junit {place}: cannot be written" in answer.err
    assert not Path("runs").exists()


def test_a_gate_on_what_attacks_want_low_says_so(run: Run) -> None:
    answer = run("audit", "small.toml", "--set", 'metrics=["mse"]', "--fail-above", "mse=1e9", "--jobs", 1)
    assert answer.code == 0
    assert "fires where they fail" in answer.err


def test_a_refused_row_is_a_skipped_test_case(tmp_path: Path) -> None:
    rows = [Row("a", {"attack": "dlg"}, {}, 0, "refused", "too large"), Row("b", {"attack": "dlg"}, {}, 0, "ok")]
    write_junit(tmp_path / "junit.xml", rows, [])
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert suite.get("skipped") == "1"
    assert [[child.tag for child in case] for case in suite] == [["skipped"], []]


def test_numbers_that_are_none_are_refused(run: Run) -> None:
    for change in ("protocol.lr=inf", "threshold=nan", "data.test_fraction=nan"):
        answer = run("check", "small.toml", "--set", change)
        assert answer.code == 2, change
        assert change.partition("=")[0] in answer.err


def test_infinity_has_a_meaning_where_a_parameter_says_so(run: Run) -> None:
    logits = {
        **SPEC,
        "data": {**SPEC["data"], "public": {"targets": 10}},
        "protocol": {"name": "fedmd"},
        "attacks": [{"name": "msa"}],
        "defenses": [{"name": "directed", "gamma": 0.1, "a": float("inf")}],
    }
    Path("logits.toml").write_text(dumps(logits))
    assert run("check", "logits.toml").code == 0


def test_a_mark_that_editors_put_before_utf8_is_no_mistake(run: Run) -> None:
    Path("marked.toml").write_bytes(b"\xef\xbb\xbf" + Path("small.toml").read_bytes())
    assert run("check", "marked.toml").code == 0


def test_all_problems_come_at_once_also_where_data_and_model_have_some(run: Run) -> None:
    wrong = {
        **SPEC,
        "data": {"name": "orll"},
        "model": {"name": "os:getcwd", "hidden": 6},
        "protocol": {"name": "fedmd"},
        "deployment": {"arm": "nonee"},
    }
    Path("wrong.toml").write_text(dumps(wrong))
    problems = {p["path"]: p["message"] for p in run("check", "wrong.toml", "--json").json["problems"]}
    assert set(problems) == {"data.name", "model.name", "model.hidden", "attacks.0.name", "deployment.arm"}
    assert "--allow-code" in problems["model.name"]
    assert "sends predictions" in problems["attacks.0.name"]
    assert "did you mean 'none'?" in problems["deployment.arm"]


def test_a_name_in_capitals_is_understood_as_a_mistake(run: Run) -> None:
    assert "did you mean 'dlm_plus'?" in run("show", "attack", "DLM_PLUS").err


def test_show_says_what_a_metric_and_a_table_are(run: Run) -> None:
    assert "1 where PSNR exceeds the row's threshold" in run("show", "metric", "recovered").out
    assert "28x28 grey" in run("show", "dataset", "mnist").out
    table = run("show", "table", "dlm/table1").out
    assert "table 1" in table
    assert "metrics: acc, psnr" in table
    assert "does not name the model" in table, "the notes say where the experiment deviates"
    assert json.loads(run("show", "table", "adamsa/table2", "--json").out)["panels"]


def test_where_a_data_set_is_missing_the_files_are_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedleak import reproduction
    from fedleak.commands import reproduce

    monkeypatch.setattr(reproduce, "run_audit", _no_data)
    assert reproduction.load_table("dlm/table1").scales["smoke"].get("instead")
    answer = run("reproduce", "dlm/table1")
    assert "Looked for:\n  - train-images-idx3-ubyte" in answer.err


def _no_data(*_: Any, **__: Any) -> None:
    from fedleak.errors import DataError

    raise DataError("data set 'mnist' not found in data. Looked for:\n  - train-images-idx3-ubyte")
