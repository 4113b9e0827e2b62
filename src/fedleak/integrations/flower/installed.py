"""Is Flower here, and new enough?"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from types import ModuleType

from fedleak.errors import RefusedError

__all__ = ["FLOOR", "flower", "flower_version", "identify"]

FLOOR = (1, 24)
"""The first version whose Message API (strategies, mods, ArrayRecord) this package was tested with."""

WAY_OUT = "pip install 'fedleak[flower]'"


def flower_version() -> tuple[int, ...]:
    """The installed version as numbers; one clear error where there is none or it is too old."""
    try:
        text = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        raise RefusedError(f"flwr is not installed and fedleak.integrations.flower needs it: {WAY_OUT}") from None
    version = tuple(int(part) for part in re.findall(r"\d+", text)[:3])
    if version < FLOOR:
        raise RefusedError(f"flwr={text}: fedleak needs {'.'.join(map(str, FLOOR))} or newer: {WAY_OUT}")
    return version


def flower(module: str = "flwr.app") -> ModuleType:
    """A module of Flower."""
    flower_version()
    return importlib.import_module(module)


def identify() -> None:
    """From flwr 1.30 on a Message takes its sender from the process, which has none outside a Flower runtime."""
    try:
        identity = flower("flwr.supercore.task_identity").TaskIdentity
    except ImportError:
        return
    for name in ("task_id", "run_id", "node_id"):
        try:
            getattr(identity, name)
        except RuntimeError:
            setattr(identity, name, 1)
