"""Checking the tables of a specification: each function makes components and notes every problem with its path."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import pydantic

from fedleak.audit.registry import registry, unknown_key, unknown_name
from fedleak.components import configure, resolved
from fedleak.errors import Problem, SpecError

__all__ = ["Findings", "build", "build_arms", "build_attacks", "build_point_parts", "check_defenses"]


class Findings:
    """Collects problems, each once."""

    def __init__(self) -> None:
        self._problems: dict[tuple[str, str], Problem] = {}

    def add(self, path: str, message: str) -> None:
        self._problems.setdefault((path, message), Problem(path, message))

    def troubled(self) -> set[str]:
        """The paths with a problem, and all those above one."""
        parts = [path.split(".") for path, _ in self._problems]
        return {".".join(part[:depth]) for part in parts for depth in range(len(part) + 1)}

    def raise_if_any(self) -> None:
        if self._problems:
            raise SpecError(list(self._problems.values()))


def _fields(cls: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(cls)]


def _inner(cls: Any, location: Sequence[str]) -> Any:
    """The component that a table inside a component's table makes: `public` of [data]."""
    hints = typing.get_type_hints(cls)
    for name in location:
        inner = [
            kind for kind in (hints.get(name), *typing.get_args(hints.get(name))) if dataclasses.is_dataclass(kind)
        ]
        if inner:
            cls, hints = inner[0], typing.get_type_hints(inner[0])
    return cls


def build(cls: type, given: Mapping[str, Any], path: str, found: Findings) -> Any | None:
    """A component from a table, or None with every wrong key noted."""
    try:
        return configure(cls, given)
    except pydantic.ValidationError as problem:
        for error in problem.errors(include_url=False):
            location = [str(part) for part in error["loc"]]
            where = ".".join([path, *location]).strip(".")
            if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
                found.add(where, unknown_key(location[-1], _fields(_inner(cls, location[:-1]))))
            elif error["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
                found.add(where, "is required")
            else:
                message = error["msg"].removeprefix("Value error, ")
                shown = "" if isinstance(error["input"], Mapping) or not location else f", found {error['input']!r}"
                found.add(where, f"{message}{shown}")
        return None


def _table(tables: Mapping[str, Any], name: str, found: Findings) -> dict[str, Any] | None:
    given = tables.get(name)
    if given is None:
        found.add(name, f"the table [{name}] is missing")
        return None
    if not isinstance(given, Mapping):
        found.add(name, f"must be a table, found {given!r}")
        return None
    return dict(given)


def _named(given: dict[str, Any], kind: str, path: str, found: Findings) -> tuple[str, Any] | None:
    """Takes `name` out of a table and finds its component."""
    name = given.pop("name", None)
    if not isinstance(name, str) or not name:
        found.add(f"{path}.name", "is required and must be a name" + ("" if name is None else f", found {name!r}"))
        return None
    known = registry(kind)
    if name not in known:
        found.add(f"{path}.name", unknown_name(kind[:-1], name, known))
        return None
    return name, known[name]


def build_point_parts(
    tables: Mapping[str, Any], found: Findings, *, own_model: bool
) -> tuple[Any, tuple[str, dict[str, Any]], tuple[str, Any] | None]:
    """(data spec, (model name, its arguments), (protocol name, protocol)). What has a problem is noted, and None (of a
    model, the name alone)."""
    from fedleak.data import DataSpec

    data: Any = None
    model: tuple[str, dict[str, Any]] = ("", {})
    protocol: tuple[str, Any] | None = None
    if (given := _table(tables, "data", found)) is not None:
        name = given.get("name")
        if not isinstance(name, str):
            found.add("data.name", "is required and must be a name")
        elif name not in (known := registry("datasets")):
            found.add("data.name", unknown_name("dataset", name, known))
        else:
            data = build(DataSpec, given, "data", found)
    if (given := _table(tables, "model", found)) is not None:
        name = given.get("name")
        if isinstance(name, str) and (own_model or ":" in name):
            for key in sorted(set(given) - {"name"}):
                found.add(f"model.{key}", "a module of your own takes no arguments here; bind them in the factory")
            model = (name, {})
        elif (named := _named(given, "models", "model", found)) is not None:
            made = build(named[1], given, "model", found)
            model = (named[0], {} if made is None else resolved(made))
    if (given := _table(tables, "protocol", found)) is not None and (
        named := _named(given, "protocols", "protocol", found)
    ) is not None:
        made = build(named[1], given, "protocol", found)
        protocol = None if made is None else (named[0], made)
    return data, model, protocol


def build_arms(given: Any, found: Findings) -> list[tuple[str, tuple[str, ...], tuple[Any, ...], frozenset[int]]]:
    """(label, defense names, defenses, numbers of the entries that it is made of) of every arm.

    Each [[defenses]] entry is an arm of its own; entries with the same `arm` are one arm, applied in order; a list
    in a list is one arm too. No entry at all: one arm without a defense.
    """
    from fedleak.defenses import chain, label

    if not isinstance(given, list):
        found.add("defenses", f"must be a list of tables ([[defenses]]), found {given!r}")
        return []
    groups: dict[str, list[tuple[str, Any]]] = {}
    explicit: set[str] = set()
    entries: dict[str, set[int]] = {}
    for number, entry in enumerate(given):
        inner = entry if isinstance(entry, list) else [entry]
        key = f"#{number}"
        for place, one in enumerate(inner):
            path = f"defenses.{number}.{place}" if isinstance(entry, list) else f"defenses.{number}"
            if not isinstance(one, Mapping):
                found.add(path, f"must be a table, found {one!r}")
                continue
            table = dict(one)
            arm = table.pop("arm", None)
            if arm is not None and (not isinstance(arm, str) or not arm):
                found.add(f"{path}.arm", f"must be a name, found {arm!r}")
            elif arm is not None:
                key = arm
                explicit.add(arm)
            if table.get("name") == "none":
                table["name"] = "identity"
            if (named := _named(table, "defenses", path, found)) is not None:
                made = build(named[1], table, path, found)
                if made is not None:
                    groups.setdefault(key, []).append((named[0], made))
                    entries.setdefault(key, set()).add(number)
        if not inner:
            groups.setdefault(key, [])
    if not given:
        groups["none"] = []
    arms: dict[str, tuple[str, tuple[str, ...], tuple[Any, ...], frozenset[int]]] = {}
    for key, members in groups.items():
        names, defenses = tuple(n for n, _ in members), tuple(d for _, d in members)
        title = key if key in explicit else label(chain(*defenses))
        if key in explicit and not chain(*defenses).members:
            found.add(
                "defenses", f"arm {key!r} has no defense; such an arm is always called 'none': remove its arm key"
            )
        if title in arms:
            found.add("defenses", f'two arms are both {title!r}; give one of them another arm = "..."')
        arms[title] = (title, names, defenses, frozenset(entries.get(key, ())))
    return list(arms.values())


def check_defenses(
    names: Sequence[str], defenses: Sequence[Any], protocol_name: str, sends: type, found: Findings
) -> None:
    """Notes every defense that has nothing to act on in what this protocol's clients do."""
    for name, defense in zip(names, defenses, strict=True):
        if sends not in (reads := getattr(defense, "reads", (sends,))):
            acts = ", ".join(one.__name__.lower() for one in reads)
            found.add(
                "defenses",
                f"{name!r} is about {acts}, but {protocol_name} sends {sends.__name__.lower()}; choose another defense "
                "(clip, sparsify, gaussian, ...) or protocol",
            )
        elif defense.stage == "gradients" and sends.__name__ == "Predictions":
            found.add(
                "defenses",
                f"{name!r} acts on the gradients of single examples, but in {protocol_name} clients also learn from "
                "each other's predictions, which its proof does not cover; choose a defense of the predictions "
                "(gaussian, laplace, directed, ...), or fedsgd or fedavg",
            )


def build_attacks(given: Any, found: Findings) -> list[tuple[str, Any, dict[str, Any], tuple[str, ...], int]]:
    """(name, attack, what tells it apart from entries of the same name, protocols, number) of every [[attacks]] entry.

    `on = ["fedsgd"]` keeps an attack to some of the protocols of a sweep; without it an attack runs wherever it can
    read what is sent.
    """
    if not isinstance(given, list):
        found.add("attacks", f"must be a list of tables ([[attacks]]), found {given!r}")
        return []
    made: list[tuple[str, Any, dict[str, Any], tuple[str, ...], int]] = []
    for number, entry in enumerate(given):
        path = f"attacks.{number}"
        if not isinstance(entry, Mapping):
            found.add(path, f"must be a table, found {entry!r}")
            continue
        table = dict(entry)
        on = _protocols(table.pop("on", []), f"{path}.on", found)
        if (named := _named(table, "attacks", path, found)) is not None:
            attack = build(named[1], table, path, found)
            if attack is not None:
                made.append((named[0], attack, table, on, number))
    result = []
    for name, attack, table, on, number in made:
        others = [t for n, a, t, *_ in made if n == name and a is not attack]
        differs = {k: v for k, v in table.items() if k != "preset" and any(t.get(k) != v for t in others)}
        plain = {f"attack.{k}": v if isinstance(v, str | int | float | bool) else str(v) for k, v in differs.items()}
        if any(n == name and resolved(a) == resolved(attack) for n, a, *_ in made if a is not attack):
            found.add("attacks", f"{name!r} stands twice with the same parameters; leave one out")
        result.append((name, attack, plain, on, number))
    return result


def _protocols(given: Any, path: str, found: Findings) -> tuple[str, ...]:
    known = registry("protocols")
    if not isinstance(given, list):
        found.add(path, f"must be a list of protocols, found {given!r}")
        return ()
    for name in given:
        if name not in known:
            found.add(path, unknown_name("protocol", name, known))
    return tuple(str(name) for name in given)
