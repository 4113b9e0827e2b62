"""The examples are what their READMEs say. (That the Flower apps run: tests/integrations/test_flower_deployment.py.)"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_flower_app_is_stock_and_five_lines_make_it_auditable() -> None:
    app = EXAMPLES / "flower_fedavg"
    for part in ("server_app.py", "client_app.py"):
        assert "integrations" not in (app / "flower_fedavg" / part).read_text(), "the app itself is not audited"
    blocks = re.findall(r"```diff( defense)?\n(.*?)```", (app / "README.md").read_text(), flags=re.DOTALL)
    changed = {
        kind: [line for k, body in blocks if k == kind for line in body.splitlines()[1:] if line[:1] in "+-"]
        for kind in ("", " defense")
    }
    assert 0 < len(changed[""]) <= 5
    assert 0 < len(changed[" defense"]) <= 5


@pytest.mark.parametrize("defended", [False, True])
def test_the_diffs_fit_the_app(defended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "flower_fedavg"))
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedleak[flower]'")
    import audit

    shutil.copytree(EXAMPLES / "flower_fedavg", tmp_path / "app")
    audit.apply_readme(tmp_path / "app", defended)
    for part in ("server_app", "client_app"):
        source = (tmp_path / "app" / "flower_fedavg" / f"{part}.py").read_text()
        compile(source, part, "exec")
        assert ("defend(" in source) == (defended and part == "client_app")
        assert ("record(" in source) == (part == "server_app")
