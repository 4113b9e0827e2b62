"""A model as a table of its name and arguments, `{ name = "mlp", hidden = 8 }`: how parameters hold one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pydantic
from pydantic_core import InitErrorDetails, PydanticCustomError

from fedleak.components import configure
from fedleak.models.registry import MODELS
from fedleak.types import ModelSpec

__all__ = ["check_table", "check_tables", "spec_of"]


def spec_of(table: Mapping[str, Any]) -> ModelSpec:
    """The model of a table that was checked."""
    return ModelSpec(str(table["name"]), _arguments(table))


def check_table(table: Mapping[str, Any], *, or_else: str = "") -> None:
    """Raises pydantic's error, every wrong entry under its own path; `or_else`: what may stand there instead."""
    _raise(list(_broken(table, (), or_else)))


def check_tables(tables: Sequence[Mapping[str, Any]]) -> None:
    """The same for a list of them: the path begins with the number of the table."""
    _raise([one for number, table in enumerate(tables) for one in _broken(table, (number,), "")])


def _arguments(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "name"}


def _broken(table: Mapping[str, Any], place: tuple[int | str, ...], or_else: str) -> Iterator[InitErrorDetails]:
    name = table.get("name")
    if name not in MODELS:
        yield _wrong((*place, "name"), name, f"must be one of {', '.join(MODELS)}{or_else}")
        return
    try:
        configure(MODELS[name], _arguments(table))
    except pydantic.ValidationError as problem:
        for error in problem.errors(include_url=False):
            unknown = error["type"] == "unexpected_keyword_argument"
            rule = f"no argument of {name}; `fedleak show models {name}` lists them" if unknown else error["msg"]
            yield _wrong((*place, *error["loc"]), error["input"], rule)


def _wrong(place: tuple[int | str, ...], value: Any, rule: str) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError("rule", "{rule}", {"rule": rule}), loc=place, input=value)


def _raise(broken: list[InitErrorDetails]) -> None:
    if broken:
        raise pydantic.ValidationError.from_exception_data("model", broken)
