"""A published table as a TOML file under papers/: the experiment as data, the published numbers beside it.

title, paper, notes           words; `notes` says where the experiment deviates from the paper
metrics                       which statistics make a row of cells (see statistics.py)
group_by                      the keys of a row's `where` that make a cell; always attack and dataset
[published_for]               the paper's numbers stand only beside these values, e.g. dataset = ["mnist"]
[[published]]                 where = {attack = "dlg"} and the paper's number of each statistic
[spec]                        an audit specification, shared by all scales
[scale.smoke], [scale.full]   what each scale lays over it; `instead` is laid on top where the data set is missing
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedleak.errors import FedleakError, RefusedError

__all__ = ["Published", "Table", "load_table", "table_names"]


class Published(BaseModel):
    """The paper's numbers for one group of cells."""

    model_config = ConfigDict(extra="allow")
    where: dict[str, Any]

    def number(self, metric: str) -> float | None:
        value = (self.model_extra or {}).get(metric)
        return None if value is None else float(value)


class Table(BaseModel):
    """One published table."""

    model_config = ConfigDict(extra="forbid")
    title: str
    paper: str
    notes: str = ""
    metrics: list[str]
    group_by: list[str] = ["attack", "dataset"]
    published_for: dict[str, list[Any]] = {}
    published: list[Published] = []
    spec: dict[str, Any]
    scales: dict[str, dict[str, Any]] = Field(alias="scale")

    def published_number(self, where: Mapping[str, Any], metric: str) -> float | None:
        """The paper's number, or None where the conditions differ or the paper gives none."""
        if any(where.get(key) not in allowed for key, allowed in self.published_for.items()):
            return None
        for entry in self.published:
            if all(where.get(key) == value for key, value in entry.where.items()):
                return entry.number(metric)
        return None


def table_names() -> list[str]:
    """PAPER/TABLE of every table that ships with fedleak."""
    root = files("fedleak") / "papers"
    return sorted(
        f"{paper.name}/{entry.name.removesuffix('.toml')}"
        for paper in root.iterdir()
        if paper.is_dir()
        for entry in paper.iterdir()
        if entry.name.endswith(".toml")
    )


def load_table(name: str) -> Table:
    from fedleak.audit.registry import did_you_mean

    known = table_names()
    if name not in known:
        raise RefusedError(f"table={name!r}: unknown{did_you_mean(name, known)}; `fedleak list tables` shows all")
    paper, _, table = name.partition("/")
    text = (files("fedleak") / "papers" / paper / f"{table}.toml").read_text(encoding="utf-8")
    try:
        return Table.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, ValidationError) as problem:
        raise FedleakError(f"papers/{name}.toml: {problem}") from None
