"""`__all__` is what can be imported, in every module, and the examples of docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

import fedleak

# Where Triton is not installed (torch for a CPU, no [dev]) the modules of GPU kernels cannot be imported.
LEFT_OUT = ("__main__",) if find_spec("triton") else ("__main__", "_kernels", "fused_calls", "fused_steps")
MODULES = sorted(m.name for m in pkgutil.walk_packages(fedleak.__path__, "fedleak.") if not m.name.endswith(LEFT_OUT))


@pytest.mark.parametrize("name", ["fedleak", *MODULES])
def test_all_names_what_is_there(name: str) -> None:
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", None)
    if listed is None:
        assert not [n for n in vars(module) if not n.startswith("_") and n not in ("annotations",)] or name.endswith(
            ("commands", "inversion", "audit", "learning")
        ), f"{name} has no __all__"
        return
    assert len(set(listed)) == len(listed)
    for item in listed:
        assert getattr(module, item) is not None


def test_the_examples_of_every_docstring_run() -> None:
    found = {name: doctest.testmod(importlib.import_module(name)) for name in MODULES}
    assert {name: result for name, result in found.items() if result.failed} == {}
    assert sum(result.attempted for result in found.values()) > 20


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys; sys.argv = ['fedleak', '--help']\n"
        "from fedleak.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.exit(1 if 'torch' in sys.modules or 'numpy' in sys.modules else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
