"""Every block of the README and of docs/ runs: TOML is checked, commands are run in order, Python is executed."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from command_line import fedleak

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"```(\w+)\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_two_commands_stand_at_the_top() -> None:
    first = README.read_text(encoding="utf-8").split("```")[1]
    assert "make audit" in first
    assert "make test" in first


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("examples").symlink_to(ROOT / "examples")  # commands name files of the checkout
    for kind, text in blocks(page):
        if kind == "toml":
            name = re.match(r"# (\S+\.toml)", text)
            assert name, "a TOML block starts with its file name"
            Path(name[1]).write_text(text)
            answer = fedleak(capsys, monkeypatch, "check", name[1])
            assert answer.code == 0, answer.err
        elif kind == "sh":
            for line in text.splitlines():
                answer = fedleak(capsys, monkeypatch, *shlex.split(line)[1:])
                # The noise in the example stops the attack, so the gate lets the deployed arm pass.
                assert answer.code == 0, f"{line}: {answer.err}"
        elif kind == "python":
            script = ModuleType("script")  # classes look for the module that they are defined in
            monkeypatch.setitem(sys.modules, "script", script)
            exec(compile(text, page.name, "exec"), script.__dict__)
            assert "dB" in capsys.readouterr().out
        else:
            raise AssertionError(f"a block of kind {kind} is not tested")
    if page == README:
        rows = [json.loads(line) for line in Path("runs/my-audit/rows.jsonl").read_text().splitlines()]
        shares = [(row["where"]["defense"], row["scores"].get("recovered")) for row in rows]
        assert ("none", [1.0]) in shares, "there is nothing in the example for its defense to prevent"


def test_the_readme_has_blocks_of_every_kind() -> None:
    assert {kind for kind, _ in blocks(README)} == {"toml", "sh", "python"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_of_the_checkout(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
