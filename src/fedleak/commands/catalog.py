"""`fedleak list` and `fedleak show`: what fedleak knows, from the registries themselves."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from fedleak.audit.registry import KINDS, did_you_mean, lookup, registry
from fedleak.audit.spec import default_spec_text
from fedleak.commands.output import is_narrow, print_json, say
from fedleak.commands.rules import in_words
from fedleak.components import parameters, preset_values
from fedleak.errors import RefusedError
from fedleak.reproduction import load_table, table_names

__all__ = ["describe", "list_command", "show_command"]

ALL = (*KINDS, "tables")
ONES = (*(kind.removesuffix("s") for kind in ALL), "spec")
"""What `show` takes: one of each kind, or the specification."""

YIELDS = {
    "reconstruction": "images",
    "labelcounts": "label counts",
    "classreconstruction": "pictures of classes",
    "stolenmodels": "copies of models",
}
"""The kinds of findings for people; in JSON they go by the names of their types."""

FEW = {"attacks": 3, "datasets": 2, "tables": 2}
"""So many columns on a narrow terminal, where more would be a few letters wide; `fedleak show` has the others."""


def _summary(component: Any) -> str:
    text = getattr(component, "description", None) or inspect.getdoc(component) or ""
    return " ".join(str(text).split("\n\n")[0].split())


def describe(kind: str, name: str) -> dict[str, Any]:
    """One entry of a listing."""
    if kind == "tables":
        table = load_table(name)
        return {"name": name, "title": table.title, "paper": table.paper, "scales": sorted(table.scales)}
    part = lookup(kind, name)
    entry: dict[str, Any] = {"name": name, "paper": getattr(part, "paper", ""), "summary": _summary(part)}
    if kind == "attacks":
        entry |= {
            "reads": [kind.__name__.lower() for kind in part.reads],
            "needs": sorted(part.needs),
            "needs_from_weights": sorted(part.needs_from_weights),
            "uses": sorted(getattr(part, "uses", ())),
            "yields": part.yields.__name__.lower(),
            "presets": sorted(getattr(part, "PRESETS", {})),
        }
    elif kind == "defenses":
        entry["stage"] = part.stage
    elif kind == "protocols":
        entry["sends"] = part.sends.__name__.lower()
    elif kind == "datasets":
        entry = {"name": name, "summary": part.description, "files": list(part.layout), "get": part.where}
    elif kind == "metrics":
        entry = {"name": name, "summary": part.description, "unit": part.unit, "better": part.better}
    return entry


def _names(kind: str) -> list[str]:
    return table_names() if kind == "tables" else list(registry(kind))


def list_command(kind: str | None, *, as_json: bool) -> int:
    if kind is not None and kind not in ALL:
        raise RefusedError(f"kind={kind!r}: choose one of {', '.join(ALL)}{did_you_mean(kind, ALL)}")
    kinds = ALL if kind is None else (kind,)
    entries = {each: [describe(each, name) for name in _names(each)] for each in kinds}
    if as_json:
        print_json(entries if kind is None else entries[kind])
        return 0
    from rich.table import Table

    for each in kinds:
        table = Table(title=each, title_justify="left", show_header=True, expand=False)
        columns = _columns(each)[: FEW.get(each) if is_narrow() else None]
        for column in columns:
            table.add_column(column, overflow="fold", no_wrap=column == "name")
        for entry in entries[each]:
            table.add_row(*(_cell(column, entry.get(column, "")) for column in columns))
        say(table)
    return 0


def _columns(kind: str) -> tuple[str, ...]:
    return {
        "attacks": ("name", "reads", "needs", "yields", "paper"),
        "defenses": ("name", "stage", "summary"),
        "protocols": ("name", "sends", "summary"),
        "datasets": ("name", "summary", "get"),
        "models": ("name", "summary"),
        "metrics": ("name", "unit", "better", "summary"),
        "tables": ("name", "title", "scales"),
    }[kind]


def _cell(key: str, value: Any) -> str:
    if key == "yields":
        return YIELDS.get(str(value), str(value))
    return ", ".join(value) if isinstance(value, list) else str(value)


def show_command(kind: str, name: str, *, as_json: bool) -> int:
    """One component with its parameters. `show spec default` prints the built-in specification."""
    if kind == "spec":
        if name != "default":
            raise RefusedError(f"spec={name!r}: only the built-in one can be shown: fedleak show spec default")
        print_json({"spec": default_spec_text()}) if as_json else say(default_spec_text())
        return 0
    plural = kind if kind in ALL else f"{kind}s"
    if plural not in ALL:
        raise RefusedError(f"kind={kind!r}: choose one of {', '.join(ONES)}{did_you_mean(kind, ONES)}")
    entry = describe(plural, name)
    part = None if plural == "tables" else lookup(plural, name)
    if plural == "tables":
        table = load_table(name)
        entry |= {"metrics": table.metrics, "panels": list(table.panels), "notes": table.notes.strip()}
    if plural == "datasets":
        from fedleak.data import DataSpec, PublicSpec

        inner = {f"public.{key}": value for key, value in parameters(PublicSpec).items()}
        entry["parameters"] = {**parameters(DataSpec), **inner}
    elif part is not None and dataclasses.is_dataclass(part) and isinstance(part, type):
        entry |= {"parameters": parameters(part), "preset_values": preset_values(part)}
    if as_json:
        print_json(entry)
        return 0
    described = plural in ("attacks", "defenses", "protocols", "models") and part is not None
    say(f"{name}\n\n{inspect.getdoc(part) if described else entry.get('summary', entry.get('title'))}\n")
    for key, value in entry.items():
        if key not in ("parameters", "preset_values", "name", "summary", "title") and value:
            say(f"{key}: {_cell(key, value)}")
    for key, value in entry.get("parameters", {}).items():
        default = f" = {value['default']!r}" if "default" in value else " (required)"
        meaning = f": {value['description']}" if "description" in value else ""
        say(f"  {key}{default}  [{in_words(value)}]{meaning}")
    for preset, values in entry.get("preset_values", {}).items():
        say(f"preset {preset}: {', '.join(f'{key} = {value!r}' for key, value in values.items())}")
    return 0
