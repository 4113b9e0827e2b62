"""The report: one HTML file that needs nothing else, built from the rows of a run and the artifacts they name.

The same rows give the same bytes: no clock, no host, no order of trials.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from fedleak.audit.rows import UTILITY
from fedleak.audit.store import RunFolder
from fedleak.errors import RefusedError
from fedleak.files import replace_file
from fedleak.report.appendix import appendix_of
from fedleak.report.arms import Arm, arms_of, strongest
from fedleak.report.beside import beside_of
from fedleak.report.blobs import Blobs
from fedleak.report.charts import VICTIMS, colour_of, title_of, trace_panels, tradeoff_panels
from fedleak.report.confidence import confidence_panels
from fedleak.report.frontier import Frontier, frontiers
from fedleak.report.frontier_chart import frontier_panels
from fedleak.report.gallery import gallery_of
from fedleak.report.glance import glance_of
from fedleak.report.kinds import KINDS, guess_words
from fedleak.report.numbers import numbers_of
from fedleak.report.sentences import amount, amount_of
from fedleak.report.tables import Summary, ordered, summary, swept
from fedleak.report.untested import gaps_of
from fedleak.report.verdict import judge
from fedleak.report.words import (
    HEADINGS,
    MEANINGS,
    between,
    between_points,
    defense_name,
    known_by_name,
    metric_unit,
    percent,
    plural,
    points,
    prose,
    sent_by,
    setting,
)

__all__ = ["build_report", "frontiers_of", "render"]

TIED = re.compile(r"(?<=\d) (?=%|dB|of \d)| (?==|·)|(?<= =) ")
"""Spaces at which no line ends: a number stays with its unit, a value with its name, and no line begins with a dot."""


def build_report(run: Path, attacks: Mapping[str, Any] | None = None) -> Path:
    """Write `report.html` into a run folder and return its path.

    `attacks` are the attacks that could have run, by name; without it, those that fedleak has.
    """
    if not run.is_dir():
        raise RefusedError(
            f"run={run}: no such folder; give the folder that an audit wrote (runs/default, or its --out)"
        )
    folder = RunFolder(run)
    if not folder.rows_file.is_file():
        raise RefusedError(f"run={run}: holds no {folder.rows_file.name}; give the folder that an audit wrote")
    page = render(folder, _known_attacks() if attacks is None else attacks)
    target = run / "report.html"
    replace_file(target, page.encode())
    return target


def render(folder: RunFolder, attacks: Mapping[str, Any]) -> str:
    """The page as text."""
    rows = ordered(folder.rows())
    blobs = Blobs(folder)
    spec = _spec_text(folder.path)
    deployed = _deployed_arm(spec)
    summaries = summary(rows)
    arms = arms_of(summaries, rows, blobs.provenance, deployed)
    keys = swept(summaries)
    federations = _federations(arms, keys)
    traces = trace_panels(federations, blobs)
    fronts = frontiers(federations)
    gallery = gallery_of(federations, strongest, blobs)
    legend = sorted({(arm.number, colour_of(arm.number), arm.title) for arm in arms})
    on_a_front = {one.number for front in fronts for one in front.settings}
    attacked = [row for row in rows if row.where.get("attack") != UTILITY]
    rounds: dict[str, int] = {}
    for arm in arms:
        protocol = str(arm.where.get("protocol"))
        rounds[protocol] = max(arm.rounds, rounds.get(protocol, 0))
    context: dict[str, Any] = {
        "verdict": judge(arms, deployed, blobs.facts),
        "glance": glance_of(federations),
        "kinds": [kind for kind in KINDS if any(kind in arm.kinds for arm in arms)] or ["images"],
        "own_models": any(sent_by(arm.where.get("protocol")) == "predictions" for arm in arms),
        "beside": beside_of(federations, blobs.facts),
        "confidence": confidence_panels(federations, rows, blobs),
        "about": _about(summaries, arms),
        "pictures": gallery,
        "federations": federations,
        "numbers": numbers_of(federations),
        "headings": HEADINGS,
        "meanings": _meanings(summaries),
        "nulls": _nulls(summaries),
        "told": known_by_name({name for found in summaries for name in found.granted}),
        "utility": any(arm.utility is not None for arm in arms),
        "tradeoff": tradeoff_panels(federations),
        "frontiers": fronts,
        "frontier_panels": frontier_panels(fronts),
        "traces": traces,
        "traces_cut": any(len(found.rows) > VICTIMS for found in summaries),
        "legend": legend,
        "frontier_legend": [entry for entry in legend if entry[0] in on_a_front],
        "appendix": appendix_of(spec, rows, blobs),
        "gaps": gaps_of(rows, attacked, attacks, sorted(blobs.problems.values()), rounds),
        "extra": lambda found: setting(found.where, [key for key in keys if key.startswith(("attack", "defense"))]),
    }
    context["sections"] = _sections(context)
    return _environment().get_template("report.jinja").render(context)


def frontiers_of(run: Path) -> list[Frontier]:
    """What the section on utility and privacy says, for scripts."""
    folder = RunFolder(run)
    rows = ordered(folder.rows())
    summaries = summary(rows)
    arms = arms_of(summaries, rows, Blobs(folder).provenance, _deployed_arm(_spec_text(run)))
    return frontiers(_federations(arms, swept(summaries)))


def _meanings(summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    """(heading, what it says) of every column that the tables have."""
    shown = {metric for found in summaries for metric in found.scores}
    return [(HEADINGS[metric], MEANINGS[metric]) for metric in MEANINGS if metric in shown]


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedleak", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    environment.filters["capitalise"] = lambda text: f"{text[:1].upper()}{text[1:]}"
    environment.filters["tied"] = lambda text: TIED.sub("\N{NO-BREAK SPACE}", text)
    css = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
    environment.globals.update(
        css=Markup(css),
        metric_unit=metric_unit,
        between=between,
        percent=percent,
        points=points,
        points_between=between_points,
        amount=amount,
        amount_of=amount_of,
        colour_of=colour_of,
        defense_name=defense_name,
    )
    return environment


def _breakable(text: Any) -> Markup:
    """A long name that may break behind an opening bracket or a comma, escaped like everything else."""
    return Markup("<wbr>").join(re.split(r"(?<=[(,+])", str(text)))


def _known_attacks() -> Mapping[str, Any]:
    """Asked for late: a report is built from rows, also where no attack can be imported."""
    try:
        found: Mapping[str, Any] = import_module("fedleak.attacks").ATTACKS
    except (ImportError, AttributeError):
        return {}
    return found


def _spec_text(run: Path) -> str:
    path = RunFolder(run).spec_file
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _deployed_arm(spec: str) -> str | None:
    """The arm that [deployment] names. A spec that cannot be read names none; the appendix prints it as it is."""
    try:
        table = tomllib.loads(spec).get("deployment")
    except tomllib.TOMLDecodeError:
        return None
    return str(table["arm"]) if isinstance(table, dict) and "arm" in table else None


def _federations(arms: Sequence[Arm], keys: Sequence[str]) -> list[tuple[str, list[Arm]]]:
    """Arms that differ in their defense only, under the name of their federation."""
    several = [key for key in ("dataset", "model") if len({str(arm.where.get(key)) for arm in arms}) > 1]
    groups: dict[str, list[Arm]] = {}
    for arm in arms:
        groups.setdefault(arm.panel, []).append(arm)
    return [(title_of(group[0], keys, several), group) for group in groups.values()]


def _about(summaries: Sequence[Summary], arms: Sequence[Arm]) -> list[str]:
    def values(key: str) -> str:
        return prose(dict.fromkeys(str(s.where[key]) for s in summaries if s.where.get(key) is not None))

    if not summaries:
        return []
    most = max((*(found.clients for found in summaries), *(arm.members for arm in arms)))
    clients = plural(most, "clients") if most else ""
    seeds = dict.fromkeys(str(seed) for found in summaries for seed in found.seeds)
    told = f"seed{'s' if len(seeds) > 1 else ''} {prose(seeds)}" if seeds else ""
    return [part for part in (values("dataset"), values("model"), values("protocol"), clients, told) if part]


def _nulls(summaries: Sequence[Summary]) -> str:
    names = dict.fromkeys(name for found in summaries for row in found.rows for name in row.baselines)
    return "; ".join(guess_words(name) for name in names)


def _sections(context: Mapping[str, Any]) -> list[tuple[str, str]]:
    known = [
        ("verdict", "Verdict", True),
        ("pictures", "Pictures", context["pictures"]),
        ("table", "Numbers", context["federations"]),
        ("utility", "Cost of defenses", context["federations"] and context["utility"]),
        ("frontier", "Utility against privacy", context["federations"] and context["frontiers"]),
        ("beside", "In context", context["federations"] and context["beside"]),
        ("confidence", "Confidence", context["federations"] and context["confidence"]),
        ("traces", "Search", context["traces"]),
        ("untested", "Not tested", context["gaps"]),
        ("appendix", "Appendix", True),
    ]
    return [(name, title) for name, title, there in known if there]
