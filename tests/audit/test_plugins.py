"""Components of third parties: installed packages with an entry point, used like fedleak's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedleak.audit.registry import registry
from fedleak.audit.spec import make_spec

ATTACK = '''
from typing import ClassVar

from fedleak.components import component
from fedleak.types import Reconstruction, Weights


@component
class Grey:
    """Says that every picture is grey."""

    paper: ClassVar[str] = "nobody"
    reads: ClassVar[tuple[type, ...]] = (Weights,)
    needs: ClassVar[frozenset[str]] = frozenset({"samples"})
    needs_from_weights: ClassVar[frozenset[str]] = frozenset()
    yields: ClassVar[type] = Reconstruction
    revision: ClassVar[int] = 1
    shade: float = 0.5


class Silent:
    """Declares nothing."""
'''
POINTS = """[fedleak.attacks]
grey = grey_attack:Grey
missing = not_there:Grey
silent = grey_attack:Silent
dlg = grey_attack:Grey
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What pip leaves of a package: its module, and its metadata beside it."""
    (tmp_path / "grey_attack.py").write_text(ATTACK)
    about = tmp_path / "grey-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: grey\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.cache_clear()
    yield
    registry.cache_clear()
    sys.modules.pop("grey_attack", None)


@pytest.mark.usefixtures("installed")
def test_an_installed_attack_is_used_by_its_name_and_checked_like_any_other() -> None:
    assert registry("attacks")["grey"].paper == "nobody"
    spec = make_spec(
        {
            "data": {"name": "orl", "clients": 2},
            "model": {"name": "mlp"},
            "protocol": {"name": "fedavg"},
            "attacks": [{"name": "grey", "shade": 0.25}],
        }
    )
    assert spec.points[0].attacks[0].attack.shade == 0.25


@pytest.mark.usefixtures("installed")
def test_one_that_cannot_be_used_is_named_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    known = registry("attacks")
    said = capsys.readouterr().err
    assert "missing" not in known
    assert "plug-in 'missing' (not_there:Grey) left out: cannot be imported" in said
    assert "silent" not in known
    assert "does not declare paper, reads" in said
    assert known["dlg"].__name__ == "DLG", "a plug-in never replaces what fedleak ships"
    assert "plug-in 'dlg' (grey_attack:Grey) left out: has the name" in said
