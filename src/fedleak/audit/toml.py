"""Plain data to TOML and paths into it. Python reads TOML but does not write it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from fedleak.errors import Problem, SpecError

__all__ = ["assign", "dumps", "look", "merged", "nowhere", "parse_assignment"]

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            # JSON's escapes are valid in a TOML basic string, except that TOML also wants DEL escaped.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case int():
            return str(value)
        case float():
            text = repr(value)
            return text if any(c in text for c in ".ein") else text + ".0"
        case list() | tuple():
            return "[" + ", ".join(_value(v) for v in value) + "]"
        case Mapping():
            inner = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
            return "{ " + inner + " }" if inner else "{}"
    raise TypeError(f"{type(value).__name__} has no TOML form")


def dumps(document: Mapping[str, Any]) -> str:
    """A TOML document. None is left out: TOML has no null."""
    plain = {k: v for k, v in document.items() if v is not None and not _is_table(v)}
    lines = [f"{_key(k)} = {_value(v)}" for k, v in plain.items()]
    for name, value in document.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{_key(name)}]", *(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)]
        elif _is_table(value):
            for entry in value:
                fields = [f"{_key(k)} = {_value(v)}" for k, v in entry.items() if v is not None]
                lines += ["", f"[[{_key(name)}]]", *fields]
    return "\n".join(lines).strip() + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list) and bool(value) and all(isinstance(entry, Mapping) for entry in value)
    )


def parse_assignment(text: str, option: str = "--set") -> tuple[str, Any]:
    """`key.path=value` of the command line: the value is TOML, or a plain word."""
    path, separator, written = text.partition("=")
    if not separator or not path.strip():
        raise SpecError([Problem(f"{option} {text}", "not of the form key.path=value")])
    try:
        return path.strip(), tomllib.loads(f"value = {written.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return path.strip(), written.strip()


def _entry(part: str) -> int:
    """Entries are counted from 0. From the end too, nobody could tell by the path which arm it is about."""
    if not part.isdecimal():
        raise ValueError(part)
    return int(part)


def _step(at: Any, part: str) -> Any:
    if isinstance(at, list):
        return at[_entry(part)]
    return at[part]


def nowhere(document: Mapping[str, Any], path: str) -> str:
    """Of a path that `assign` cannot follow: where it goes wrong, and what there is."""
    at: Any = document
    parts = path.split(".")
    for number, part in enumerate(parts):
        here = ".".join(parts[:number])
        if isinstance(at, list) and (not part.isdecimal() or int(part) >= len(at)):
            names = [entry.get("name") if isinstance(entry, Mapping) else None for entry in at]
            found = ", ".join(f"{here}.{k}" + (f" ({name})" if name else "") for k, name in enumerate(names))
            return f"leads nowhere: {part!r} is no entry of {here}, counted from 0: {found or 'there is none'}"
        if not isinstance(at, list | Mapping):
            return f"leads nowhere: {here} is {at!r}, which has nothing inside"
        at = at[int(part)] if isinstance(at, list) else at.get(part, {})
    return "leads nowhere in this specification"


def look(document: Mapping[str, Any], path: str) -> Any:
    """What stands at a path such as `attacks.0.steps`; KeyError, IndexError, ValueError or TypeError if nothing."""
    at: Any = document
    for part in path.split("."):
        at = _step(at, part)
    return at


def assign(document: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with the value at the path; tables on the way are made, list entries must be there. A table value is
    merged into a table that is there."""
    copy: dict[str, Any] = _copied(document)
    at: Any = copy
    *way, last = path.split(".")
    for part in way:
        if isinstance(at, dict):
            at = at.setdefault(part, {})
        else:
            at = _step(at, part)
    if isinstance(at, list):
        at[_entry(last)] = merged(at[_entry(last)], value)
    elif isinstance(at, dict):
        at[last] = merged(at.get(last), value)
    else:
        raise TypeError(f"{path} leads into a {type(at).__name__}")
    return copy


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _copied(v) for k, v in value.items()}
    return [_copied(v) for v in value] if isinstance(value, list) else value


def merged(base: Any, over: Any) -> Any:
    """`over` laid on `base`, table by table."""
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        return {**base, **{k: merged(base.get(k), v) for k, v in over.items()}}
    return over
