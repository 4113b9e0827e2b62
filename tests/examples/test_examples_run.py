"""Examples that run as they stand: own network, Opacus clients, the notebook, the gate in a pipeline."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fedleak.defenses.accounting import gaussian_epsilon

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.slow
def test_own_model_believes_what_leaks_and_nothing_else(tmp_path: Path) -> None:
    done = run(str(EXAMPLES / "own_model.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [": believed" in line for line in lines] == [True, True, False, False]


@pytest.mark.slow
def test_opacus_client_trades_accuracy_for_privacy(tmp_path: Path) -> None:
    pytest.importorskip("opacus", reason="opacus is not installed: pip install 'fedleak[opacus]'")
    done = run(str(EXAMPLES / "opacus_client.py"), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    points = json.loads(done.stdout)["points"]
    assert points[0]["epsilon"] is None
    assert points[0]["recovered"] >= 1
    assert all(point["recovered"] == 0 for point in points[1:])
    spent = [point["epsilon"] for point in points[1:]]
    assert spent == sorted(spent, reverse=True)
    assert spent[-1] <= 1.0
    assert points[0]["accuracy"] > points[-1]["accuracy"] + 0.2


@pytest.mark.slow
def test_the_notebook_runs_and_its_objects_show_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((EXAMPLES / "audit_a_recording.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "notebook"}
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "notebooks are stored without output"
            shown.append(_last_value("".join(cell["source"]), names))
    pages = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert len(pages) == 2
    assert all("data:image/png;base64," in page and "believed: starts agree" in page for page in pages)
    assert all(score > 0.9 for score in shown[-1].values())


def _last_value(code: str, names: dict[str, Any]) -> Any:
    """What a notebook displays: the value of a last line that is an expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_the_gate_fails_the_pipeline_until_the_defense_is_deployed(tmp_path: Path) -> None:
    spec = str(EXAMPLES / "ci_gate" / "audit.toml")
    gate = ["--fail-above", "recovered=0.1", "--out", "run", "--jobs", "1", "--device", "cpu", "--quiet"]
    start = ["-c", "from fedleak.cli import main; main()", "audit", spec]
    failed = run(*start, *gate, "--junit", "before.xml", cwd=tmp_path)
    assert failed.returncode == 3, failed.stderr
    reasons = [line for line in failed.stderr.splitlines() if "gate crossed" in line]
    assert len(reasons) == 1
    assert "recovered=1 is above 0.1" in reasons[0]
    assert int(ElementTree.parse(tmp_path / "before.xml").getroot().get("failures", "0")) >= 1
    fix = ["--set", 'deployment.arm="gaussian(sigma=0.01)"', "--junit", "after.xml"]
    passed = run(*start, *gate, *fix, cwd=tmp_path)
    assert passed.returncode == 0, passed.stderr
    assert ElementTree.parse(tmp_path / "after.xml").getroot().get("failures") == "0"


def test_the_privacy_curve_runs_and_every_row_names_its_epsilon(tmp_path: Path) -> None:
    smaller = ["--set", "protocol.rounds=2", "--set", "attacks.0.steps=1"]
    spec = str(EXAMPLES / "dp_curve.toml")
    given = [spec, "--out", "run", "--jobs", "1", "--device", "cpu", "--quiet", "--json", *smaller]
    done = run("-c", "from fedleak.cli import main; main()", "audit", *given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found: dict[str, set[float | None]] = {}
    for row in json.loads(done.stdout)["rows"]:
        blob = tmp_path / "run" / "artifacts" / row["artifacts"]["provenance"]
        promised = json.loads(blob.read_text())["guarantee"]
        found.setdefault(row["where"]["defense"], set()).add(promised["epsilon"])
    # One example replaced moves a sum of clipped gradients by two norms, and it is in one step of each of two rounds.
    assert all(len(each) == 1 for each in found.values()), "all rows of an arm say the same"
    promises = {arm: next(iter(each)) for arm, each in found.items()}
    arms = {f"dp_sgd(noise_multiplier={noise:g}, max_grad_norm=4)": noise for noise in (0.03, 0.3, 1.0, 8.0)}
    wanted = {arm: pytest.approx(gaussian_epsilon(noise, 2.0, 1e-5, 2)) for arm, noise in arms.items()}
    assert promises == {"none": None, **wanted}
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert page.count("-DP over 2 round(s)") >= len(arms)
