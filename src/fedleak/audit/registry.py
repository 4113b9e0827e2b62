"""Every component fedleak knows, by kind and name: one literal dict per kind, plus installed plug-ins.

A third party adds a component with an entry point in the group "fedleak.attacks" (or defenses, protocols, ...).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from fedleak.errors import RefusedError

__all__ = ["KINDS", "did_you_mean", "load_code", "lookup", "registry"]

KINDS: dict[str, tuple[str, str]] = {
    "attacks": ("fedleak.attacks", "ATTACKS"),
    "defenses": ("fedleak.defenses", "DEFENSES"),
    "protocols": ("fedleak.federation", "PROTOCOLS"),
    "datasets": ("fedleak.data", "DATASETS"),
    "models": ("fedleak.models", "MODELS"),
    "metrics": ("fedleak.metrics", "METRICS"),
}


@cache
def registry(kind: str) -> Mapping[str, Any]:
    """Name to component. Torch is imported here at the latest, so ask only when you need it."""
    module, name = KINDS[kind]
    built_in: dict[str, Any] = getattr(import_module(module), name)
    plugged = {point.name: point.load() for point in entry_points(group=f"fedleak.{kind}")}
    return {**plugged, **built_in}  # a plug-in never replaces what fedleak ships


def lookup(kind: str, name: str) -> Any:
    known = registry(kind)
    if name not in known:
        raise RefusedError(f"{kind[:-1]}={name!r}: unknown{did_you_mean(name, known)}; `fedleak list {kind}` shows all")
    return known[name]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """'; did you mean ...?' where something is close, else nothing."""
    close = difflib.get_close_matches(str(word), [str(k) for k in known], n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def load_code(target: str, allow: bool) -> Callable[[], Any]:
    """A user's `module:factory`. Refused, without importing anything, unless the user allowed it."""
    module, separator, name = target.partition(":")
    if not (separator and module and name):
        raise RefusedError(f"model={target!r}: not of the form module:factory")
    if not allow:
        raise RefusedError(f"model={target!r}: would run your code; add --allow-code if that is what you want")
    import sys

    if "" not in sys.path:
        sys.path.insert(0, "")  # a console script does not see the folder it was started in
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as problem:
        raise RefusedError(f"model={target!r}: cannot be imported ({problem})") from None
    if not callable(found):
        raise RefusedError(f"model={target!r}: is a {type(found).__name__}, not something that makes a module")
    factory: Callable[[], Any] = found
    return factory
