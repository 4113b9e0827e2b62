"""A published table or figure as a TOML file under papers/: the experiment as data, their numbers beside it.

title, paper, notes           words; `notes` says where the experiment deviates from the paper
metrics                       which statistics make a row of cells (see statistics.py)
group_by                      the keys of a row's `where` that make a cell; always attack and dataset
[rename]                      a swept path to the short name it has in a cell: "protocol.epochs" = "E"
[published_for]               the paper's numbers stand only beside these values, e.g. dataset = ["mnist"]
[[published]]                 where = {attack = "dlg"} and the paper's number of each statistic
[[paired]], [[matched]]       differences within the same federations, as cells (see comparisons.py)
[[figure]]                    what to draw from the run (see figures.py)
[spec]                        an audit specification, shared by all scales
[panel.NAME]                  laid over it for one part of the experiment; every part is a run of its own
[scale.smoke], [scale.full]   what each scale lays over it; `instead` is laid on top where the data set is missing;
                              [scale.smoke.panel.NAME] holds for one part only
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedleak.audit.registry import did_you_mean
from fedleak.audit.toml import merged
from fedleak.errors import FedleakError, RefusedError

__all__ = ["Figure", "Matched", "Paired", "Published", "Table", "load_table", "table_names"]


class Published(BaseModel):
    """The paper's numbers for one group of cells."""

    model_config = ConfigDict(extra="allow")
    where: dict[str, Any]

    def number(self, metric: str) -> float | None:
        value = (self.model_extra or {}).get(metric)
        return None if value is None else float(value)


class Figure(BaseModel):
    """One picture: cells against a swept value, curves over the iterations, pictures on the way or of the prior, or
    histograms.

    `x` is a key of the cells ("sweep" only); `y` a statistic ("sweep"), "loss" or "psnr" ("iterations"), "entropy" or
    "similarity" ("histogram"); `lines` tell curves apart and `facets` the axes, each by keys of `where` (`panel` among
    them). What lacks one of the keys `x` and `lines` is not part of the figure.
    """

    model_config = ConfigDict(extra="forbid")
    name: str
    draw: Literal["sweep", "iterations", "pictures", "prior", "histogram"] = "sweep"
    x: str = ""
    y: str = "psnr_all"
    lines: list[str] = []
    facets: list[str] = ["dataset"]
    log_x: bool = False
    log_y: bool = False


class Paired(BaseModel):
    """A cell for every value of `key` but `against`: by how much its `metric` is higher, example by example.

    Only for cells that match `where`; what they are compared with differs from them in `key` and in what `but` says,
    and in nothing else. `published` is the difference of the paper's two numbers, where both are given.
    """

    model_config = ConfigDict(extra="forbid")
    name: str
    metric: str = "attack_accuracy"
    key: str = "attack"
    against: str | int
    where: dict[str, Any] = {}
    but: dict[str, Any] = {}


class Matched(BaseModel):
    """A cell for every one of `others` and every level: how much less test accuracy the defense `cheap` costs than it
    where `attack` gets the same from both (privacy loss = level), seed by seed, in points."""

    model_config = ConfigDict(extra="forbid")
    cheap: str
    others: list[str]
    attack: str
    levels: list[float]


class Table(BaseModel):
    """One published table or figure."""

    model_config = ConfigDict(extra="forbid")
    title: str
    paper: str
    notes: str = ""
    metrics: list[str]
    group_by: list[str] = ["attack", "dataset"]
    rename: dict[str, str] = {}
    published_for: dict[str, list[Any]] = {}
    published: list[Published] = []
    paired: list[Paired] = []
    matched: list[Matched] = []
    figures: list[Figure] = Field(default=[], alias="figure")
    spec: dict[str, Any]
    panels: dict[str, dict[str, Any]] = Field(default={}, alias="panel")
    scales: dict[str, dict[str, Any]] = Field(alias="scale")

    def published_number(self, where: Mapping[str, Any], metric: str) -> float | None:
        """The paper's number, or None where the conditions differ or the paper gives none."""
        if any(where.get(key) not in allowed for key, allowed in self.published_for.items()):
            return None
        for entry in self.published:
            if all(where.get(key) == value for key, value in entry.where.items()):
                return entry.number(metric)
        return None

    def renamed(self, where: Mapping[str, Any]) -> dict[str, Any]:
        """A row's `where` with the short names. A short name that is there already is overruled, so that the `path`
        of an image folder can be the name of its data set."""
        plain = {key: value for key, value in where.items() if key not in self.rename}
        return {**plain, **{short: where[path] for path, short in self.rename.items() if path in where}}

    def parts(self, scale: str, only: Sequence[str] = ()) -> dict[str, tuple[dict[str, Any], dict[str, Any] | None]]:
        """Panel name to (specification, the same on the data that stands in where a data set is missing).

        A table without panels is one part, named "". `only` names the panels that are wanted; none: all.
        """
        for name in only:
            if name not in self.panels:
                known = f"choose from {', '.join(self.panels)}" if self.panels else "this table has none"
                raise RefusedError(f"panel={name!r}: {known}{did_you_mean(name, self.panels)}")
        if scale not in self.scales:
            known = ", ".join(self.scales)
            raise RefusedError(f"scale={scale!r}: choose one of {known}{did_you_mean(scale, self.scales)}")
        over = dict(self.scales[scale])
        instead, own = over.pop("instead", None), over.pop("panel", {})
        found = {}
        for name, panel in (self.panels or {"": {}}).items():
            if only and name not in only:
                continue
            wanted = merged(merged(merged(self.spec, over), panel), own.get(name, {}))
            found[name] = (wanted, None if instead is None else _standing_in(wanted, instead))
        return found


def _standing_in(wanted: Mapping[str, Any], instead: Mapping[str, Any]) -> dict[str, Any]:
    # `data` is replaced, not merged: keys of one data set may mean nothing to another.
    return {**merged(wanted, instead), "data": instead["data"]}


def table_names() -> list[str]:
    """PAPER/TABLE of every table that ships with fedleak, fig2 before fig10."""
    root = files("fedleak") / "papers"
    names = (
        f"{paper.name}/{entry.name.removesuffix('.toml')}"
        for paper in root.iterdir()
        if paper.is_dir()
        for entry in paper.iterdir()
        if entry.name.endswith(".toml")
    )
    return sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])


def load_table(name: str) -> Table:
    known = table_names()
    if of_paper := [one for one in known if one.startswith(f"{name.rstrip('/')}/")]:
        raise RefusedError(f"table={name!r}: a paper; choose one of its tables: {', '.join(of_paper)}")
    if name not in known:
        raise RefusedError(f"table={name!r}: unknown{did_you_mean(name, known)}; `fedleak list tables` shows all")
    paper, _, table = name.partition("/")
    text = (files("fedleak") / "papers" / paper / f"{table}.toml").read_text(encoding="utf-8")
    try:
        return Table.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, ValidationError) as problem:
        raise FedleakError(f"papers/{name}.toml: {problem}") from None
