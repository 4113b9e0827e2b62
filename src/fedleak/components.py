"""Hyperparameter classes: validated the same from Python, TOML and the command line.

A component is a frozen pydantic dataclass. Where it has a field `preset` and a class variable `PRESETS`, the named
preset supplies the defaults and explicit values win:

    DLMPlus(preset="paper")            # the paper's settings
    DLMPlus(preset="paper", steps=50)  # the paper's settings, but 50 steps
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, cast, dataclass_transform

import pydantic
from pydantic import AfterValidator, ConfigDict
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_core import ArgsKwargs

__all__ = ["RoundNumber", "component", "configure", "filled", "parameters", "preset_values", "resolved"]

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def component(cls: type[T]) -> type[T]:
    """Class decorator: a frozen, keyword-only, validated dataclass that rejects unknown fields, and numbers that are
    none: a field that has a use for infinity says so (`allow_inf_nan=True`)."""
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
    made = pydantic_dataclass(cls, frozen=True, kw_only=True, config=config)
    return cast(type[T], made)


def _not_zero(value: int) -> int:
    if value == 0:
        raise ValueError("rounds are counted from 1, or from -1 at the end")
    return value


RoundNumber = Annotated[int, AfterValidator(_not_zero)]
"""A round, from 1; negative counts from the end."""


def filled(presets: Mapping[str, Mapping[str, Any]], given: Any, default: str) -> Any:
    """What a class was called with, over what its preset supplies: for a `model_validator(mode="before")`, so that a
    preset holds however the class is called. `default` is the preset where none is named."""
    values = dict(given.kwargs or {}) if isinstance(given, ArgsKwargs) else given
    if not isinstance(values, Mapping) or not isinstance(values.get("preset", default), str):
        return given  # the field's own check says what is wrong
    whole = {**presets.get(values.get("preset", default), {}), **values}
    return ArgsKwargs(given.args, whole) if isinstance(given, ArgsKwargs) else whole


def configure(cls: type[T], given: Mapping[str, Any]) -> T:
    """An instance from plain values; a preset fills in what was not given.

    Raises pydantic.ValidationError, whose entries name the field.
    """
    presets: Mapping[str, Mapping[str, Any]] = getattr(cls, "PRESETS", {})
    name = given.get("preset", _default(cls, "preset"))
    filled = {**presets.get(name, {}), **given} if isinstance(name, str) else dict(given)
    return pydantic.TypeAdapter(cls).validate_python(filled)


def _default(cls: type, name: str) -> Any:
    for field in dataclasses.fields(cast(Any, cls)):
        if field.name == name:
            default = field.default
            return getattr(default, "default", default)
    return None


def parameters(cls: type) -> dict[str, dict[str, Any]]:
    """Name to {type, default, description, rules} for every field, for `fedleak show` and the documentation."""
    schema = pydantic.TypeAdapter(cls).json_schema()
    return {name: dict(entry) for name, entry in schema.get("properties", {}).items()}


def preset_values(cls: type) -> dict[str, dict[str, Any]]:
    """What each preset sets to something else than `parameters` says. Where that also depends on the pictures
    (`COLUMNS`: preset, kind of pictures, field), there is an entry for each kind."""
    fields = parameters(cls)
    presets: Mapping[str, Mapping[str, Any]] = getattr(cls, "PRESETS", {})
    columns: Mapping[str, Mapping[str, Mapping[str, Any]]] = getattr(cls, "COLUMNS", {})
    found = {}
    for name, whole in presets.items():
        found[name] = {field: value for field, value in whole.items() if value != fields[field].get("default")}
        found |= {f"{name}, {kind} pictures": dict(own) for kind, own in columns.get(name, {}).items()}
    return {name: values for name, values in found.items() if values}


def resolved(instance: Any) -> dict[str, Any]:
    """All field values as plain JSON-able data. JSON has no infinity: the word for it is read back as the number."""
    plain = cast(dict[str, Any], pydantic.TypeAdapter(type(instance)).dump_python(instance, mode="json"))
    return {name: "inf" if value == math.inf else value for name, value in plain.items()}
