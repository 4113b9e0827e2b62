"""Every component fedleak knows, by kind and name: one literal dict per kind, plus installed plug-ins.

A third party adds a component with an entry point in the group "fedleak.attacks" (or defenses, protocols, ...). One
that cannot be used is named on stderr and left out: somebody else's broken package must not stop an audit.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from fedleak.errors import RefusedError
from fedleak.factories import raised, takes_nothing

__all__ = ["KINDS", "did_you_mean", "load_code", "lookup", "registry", "unknown_key", "unknown_name"]

KINDS: dict[str, tuple[str, str]] = {
    "attacks": ("fedleak.attacks", "ATTACKS"),
    "defenses": ("fedleak.defenses", "DEFENSES"),
    "protocols": ("fedleak.federation", "PROTOCOLS"),
    "datasets": ("fedleak.data", "DATASETS"),
    "models": ("fedleak.models", "MODELS"),
    "metrics": ("fedleak.metrics", "METRICS"),
}


DECLARED = {
    "attacks": ("paper", "reads", "needs", "needs_from_weights", "yields", "revision"),
    "defenses": ("stage", "revision"),
    "protocols": ("sends", "revision"),
}
"""What a component of each kind says about itself."""


@cache
def registry(kind: str) -> Mapping[str, Any]:
    """Name to component. Torch is imported here at the latest, so ask only when you need it."""
    module, name = KINDS[kind]
    built_in: dict[str, Any] = getattr(import_module(module), name)
    return {**_plugged(kind, built_in), **built_in}


def _plugged(kind: str, built_in: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for point in entry_points(group=f"fedleak.{kind}"):
        try:
            part = point.load()
            lacks = [name for name in DECLARED.get(kind, ()) if not hasattr(part, name)]
            problem = f"does not declare {', '.join(lacks)}" if lacks else ""
        except Exception as error:  # whatever its import does
            problem = f"cannot be imported ({type(error).__name__}: {error})"
        if point.name in built_in:
            problem = "has the name of one that fedleak ships, which is used"
        if problem:
            print(f"fedleak: plug-in {point.name!r} ({point.value}) left out: {problem}", file=sys.stderr)
        else:
            found[point.name] = part
    return found


def lookup(kind: str, name: str) -> Any:
    known = registry(kind)
    if name not in known:
        raise RefusedError(f"{kind[:-1]}={name!r}: unknown{did_you_mean(name, known)}; `fedleak list {kind}` shows all")
    return known[name]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """'; did you mean ...?' where something is close, else nothing."""
    names = {str(name).casefold(): str(name) for name in known}
    close = difflib.get_close_matches(str(word).casefold(), names, n=1, cutoff=0.5)
    return f"; did you mean {names[close[0]]!r}?" if close else ""


def unknown_key(word: str, known: Iterable[str]) -> str:
    """The message for a key that is none: the one that was meant, or all there are."""
    names = [str(name) for name in known]
    return f"unknown key{did_you_mean(word, names) or '; known: ' + (', '.join(names) or 'none')}"


def unknown_name(what: str, name: Any, known: Iterable[str]) -> str:
    """The message for a name of nothing: the one that was meant, and all there are."""
    names = list(known)
    return f"unknown {what} {name!r}{did_you_mean(name, names)}; known: {', '.join(names)}"


def load_code(target: str, allow: bool) -> Callable[[], Any]:
    """A user's `module:factory`. Refused, without importing anything, unless the user allowed it."""
    module, separator, name = target.partition(":")
    if not (separator and module and name):
        raise RefusedError(f"model={target!r}: not of the form module:factory")
    if not allow:
        raise RefusedError(f"model={target!r}: would run your code; add --allow-code if that is what you want")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a console script does not see the folder it was started in
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as problem:  # whatever its import does
        said = problem if isinstance(problem, ImportError | AttributeError | SyntaxError) else raised(problem)
        raise RefusedError(f"model={target!r}: cannot be imported ({said})") from None
    if not callable(found):
        raise RefusedError(f"model={target!r}: is a {type(found).__name__}, not something that makes a module")
    takes_nothing(found, target)
    factory: Callable[[], Any] = found
    return factory
