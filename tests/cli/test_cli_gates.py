"""What a gate makes of rows: which cross it, which cannot be held against it, and what the pipeline is told."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedleak.audit.rows import UTILITY, Row
from fedleak.commands.audit import _exit_code
from fedleak.commands.gate import Gate, better_low, check_gates, gated, parse_gate, write_junit
from fedleak.errors import RefusedError


def row(client: str, *recovered: float, status: str = "ok", defense: str = "none", attack: str = "dlg") -> Row:
    where = {"attack": attack, "client": client, "defense": defense}
    scores = {"recovered": list(recovered)} if recovered else {}
    return Row(client, where, scores, len(recovered), status, status if status != "ok" else "")  # type: ignore[arg-type]


LIMIT = Gate("recovered", 0.25)


def test_the_mean_over_the_examples_of_a_row_is_held_against_the_limit() -> None:
    rows = [row("a", 0, 0, 0, 1), row("b", 1, 1, 0, 0), row("c", 0, 0)]
    crossings, unmeasured = check_gates(rows, [LIMIT])
    assert [(one.row.trial, one.value) for one in crossings] == [("b", 0.5)], "a quarter is not above a quarter"
    assert str(crossings[0]) == "recovered=0.5 is above 0.25 (attack=dlg, client=b, defense=none)"
    assert unmeasured == []


def test_any_row_that_crosses_any_gate_is_named() -> None:
    rows = [row("a", 1.0), row("b", 1.0), row("c", 0.0)]
    crossings, _ = check_gates(rows, [LIMIT, Gate("recovered", 0.5), Gate("recovered", 1.0)])
    assert [(one.row.trial, one.gate.limit) for one in crossings] == [("a", 0.25), ("b", 0.25), ("a", 0.5), ("b", 0.5)]


def test_a_gate_that_no_row_could_be_held_against_is_not_passed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row("a", status="refused"), row("b")]
    crossings, unmeasured = check_gates(rows, [LIMIT])
    assert (crossings, unmeasured) == ([], [LIMIT])
    assert _exit_code(rows, crossings, unmeasured) == 1
    assert "a gate could not be checked" in capsys.readouterr().err


@pytest.mark.parametrize("status", ["failed", "out_of_memory", "timed_out"])
def test_a_crossed_gate_is_said_before_a_broken_trial(status: str, capsys: pytest.CaptureFixture[str]) -> None:
    broken, leaky = row("a", status=status), row("b", 1.0)
    crossings, unmeasured = check_gates([broken, leaky], [LIMIT])
    assert _exit_code([broken, leaky], crossings, unmeasured) == 3
    assert _exit_code([broken], [], []) == 1
    assert f"fedleak: {status}: dlg" in capsys.readouterr().err


@pytest.mark.parametrize("status", ["ok", "refused", "diverged"])
def test_what_an_attack_ran_into_is_no_failure_of_the_run(status: str) -> None:
    assert _exit_code([row("a", status=status)], [], []) == 0


def test_the_rows_of_the_deployed_arm_are_gated_else_all() -> None:
    rows = [row("a"), row("b", defense="shipped")]
    assert gated(rows, "shipped") == rows[1:]
    assert gated(rows, "nowhere") == []
    assert gated(rows, None) == rows


def test_every_row_is_a_test_case_with_its_ending(tmp_path: Path) -> None:
    rows = [row("a", 1.0), row("b", 0.0), *(row(s, status=s) for s in ("failed", "out_of_memory", "timed_out"))]
    rows += [row("d", status="refused"), row("", attack=UTILITY)]
    write_junit(tmp_path / "junit.xml", rows, check_gates(rows, [LIMIT])[0])
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["7", "1", "3", "1"]
    endings = [[child.tag for child in case] for case in suite]
    assert endings == [["failure"], [], ["error"], ["error"], ["error"], ["skipped"], []]
    assert (suite[0][0].get("message"), suite[2][0].get("message")) == (
        "recovered=1 is above 0.25 (attack=dlg, client=a, defense=none)",
        "failed",
    )


def test_a_gate_is_a_metric_that_is_measured_and_a_number() -> None:
    assert parse_gate("recovered=0.1", ["recovered"]) == Gate("recovered", 0.1)
    assert parse_gate("utility=0.9", ["recovered"]) == Gate("utility", 0.9), "every run measures the utility"
    for text in ("recovered=nan", "recovered=", "recovered", "=0.1", "psnr=30"):
        with pytest.raises(RefusedError):
            parse_gate(text, ["recovered"])


def test_attacks_want_some_metrics_low() -> None:
    assert [name for name in ("recovered", "psnr", "mse", "lpips", "label_errors") if better_low(name)] == [
        "mse",
        "lpips",
        "label_errors",
    ]
