"""The wheel works in a clean environment: nothing that the code needs was left in the checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_wheel_in_a_clean_environment(tmp_path: Path) -> None:
    def run(*command: object) -> str:
        ended = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert ended.returncode == 0, f"{command}: {ended.stderr}"
        return ended.stdout

    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path / "dist", ROOT)
    (wheel,) = (tmp_path / "dist").glob("fedleak-*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    fedleak = tmp_path / "venv" / "bin" / "fedleak"
    assert "dlm_plus" in run(fedleak, "list", "attacks")
    assert "dlm/table1" in run(fedleak, "list", "tables")
    (tmp_path / "spec.toml").write_text(
        '[data]\nname = "orl"\nsize = 8\nclients = 2\n[model]\nname = "mlp"\n'
        '[protocol]\nname = "fedavg"\nexamples = 1\n[[attacks]]\nname = "dlm_plus"\nsteps = 2\n'
    )
    assert "report.html" in run(fedleak, "audit", "spec.toml", "--jobs", "1")
    assert (tmp_path / "runs" / "spec" / "report.html").is_file()
