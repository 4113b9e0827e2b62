"""Data flows one way. This reads every import and fails if an arrow points backwards."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fedleak

SOURCE = Path(fedleak.__file__).parent

# Each area may import itself and these. What is not listed here is an arrow that points backwards.
BASE = {"types", "errors", "components", "factories", "seeding", "files", "notebook"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "factories": {"errors"},
    "notebook": set(),
    "seeding": set(),
    "components": set(),
    "wire": {"errors"},
    "findings": {"notebook", "wire"},
    "types": {"findings", "wire"},
    "files": {"errors"},
    "transcript": BASE,
    "learning": BASE,
    "models": BASE,
    "data": BASE,
    "defenses": BASE | {"learning", "models"},
    "federation": BASE | {"learning", "models", "defenses"},
    "attacks": BASE | {"learning", "models"},
    "metrics": BASE | {"learning", "models"},
    "audit": BASE | {"learning", "models", "data", "defenses", "federation", "attacks", "metrics", "transcript"},
    "integrations": BASE | {"transcript", "defenses", "learning", "models", "audit"},
    "report": BASE | {"audit", "metrics", "attacks"},
    "reproduction": BASE | {"audit", "metrics", "report"},
    "api": BASE | {"audit", "data", "defenses", "federation", "metrics", "report", "transcript"},
    "bench": BASE | {"attacks", "learning", "models"},
    "commands": BASE | {"audit", "bench", "data", "metrics", "report", "reproduction", "transcript"},
    "cli": {"commands", "errors", "__init__"},
    "__main__": {"cli"},
    "__init__": {"api", "transcript", "types"},
}


def area(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The areas of fedleak that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative imports hide the direction"
            modules = [node.module or ""]
            if node.module == "fedleak":
                modules = [
                    f"fedleak.{a.name}" if (SOURCE / a.name).exists() else "fedleak.__init__" for a in node.names
                ]
        found |= {module.split(".")[1] for module in modules if module.startswith("fedleak.")}
    return found


FILES = sorted(SOURCE.rglob("*.py"))


def test_every_area_has_a_place_in_the_order() -> None:
    assert {area(path) for path in FILES} == set(ALLOWED)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_arrow_points_backwards(path: Path) -> None:
    mine = area(path)
    wrong = imported(path) - ALLOWED[mine] - {mine}
    assert not wrong, f"{path.relative_to(SOURCE)} imports {sorted(wrong)}"


def test_attacks_have_no_word_for_the_truth() -> None:
    for path in (SOURCE / "attacks").rglob("*.py"):
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        aliases = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        assert not {"Truth", "Recording", "Examples"} & (names | aliases), path.name


def test_the_order_has_no_circle() -> None:
    def reach(start: str, seen: frozenset[str]) -> None:
        for following in ALLOWED.get(start, set()):
            assert following not in seen, f"{start} and {following} import each other"
            reach(following, seen | {following})

    for start in ALLOWED:
        reach(start, frozenset({start}))
