"""Every block of the README runs: TOML is checked, commands are run in order, Python is executed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from command_line import fedleak

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_two_commands_stand_at_the_top() -> None:
    first = README.read_text(encoding="utf-8").split("```")[1]
    assert "make audit" in first
    assert "make test" in first


def test_the_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, text in BLOCKS:
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
            exec(compile(text, "README.md", "exec"), {"__name__": "readme"})
            assert "dB" in capsys.readouterr().out
        else:
            raise AssertionError(f"a block of kind {kind} is not tested")
    assert {kind for kind, _ in BLOCKS} == {"toml", "sh", "python"}
