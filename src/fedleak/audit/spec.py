"""An audit specification: parsed, checked as a whole, and expanded to points. All problems come at once.

TOML text ──read──► plain tables ──[sweep]──► one set of tables a point ──check──► Spec (components, ready to run)
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedleak.audit.checks import Findings, build_arms, build_attacks, build_point_parts, check_defenses
from fedleak.audit.points import Arm, AttackChoice, Point, Spec
from fedleak.audit.public_checks import check_dropped, check_history, check_public, check_sums
from fedleak.audit.registry import did_you_mean, load_code, registry, unknown_key, unknown_name
from fedleak.audit.resolution import resolved_spec
from fedleak.audit.round_checks import check_rounds
from fedleak.audit.sweep import expand
from fedleak.audit.toml import assign, nowhere
from fedleak.errors import Problem, RefusedError, SpecError
from fedleak.factories import name_of
from fedleak.metrics import DEFAULT_METRICS
from fedleak.types import ModelSpec

__all__ = ["TOP_LEVEL", "Arm", "AttackChoice", "Point", "Spec", "default_spec_text", "make_spec", "read_spec"]

TOP_LEVEL = (
    "data",
    "model",
    "protocol",
    "defenses",
    "attacks",
    "metrics",
    "seeds",
    "threshold",
    "time_limit",
    "sweep",
    "cases",
    "deployment",
)
LAID_OVER = ("data", "model", "protocol", "defenses", "attacks", "sweep")
"""What a case may replace."""


def default_spec_text() -> str:
    return (Path(__file__).parent / "default.toml").read_text(encoding="utf-8")


def read_spec(
    source: Path | None,
    changes: Sequence[tuple[str, Any]] = (),
    *,
    allow_code: bool = False,
    model: Callable[[], Any] | None = None,
) -> Spec:
    """A specification from a file (None: the built-in default), with changes of the form (path, value) laid on it."""
    if source is None:
        content = default_spec_text().encode()
    else:
        try:
            content = source.read_bytes()
        except OSError as problem:
            raise RefusedError(f"spec={source}: cannot be read ({problem.strerror}); give a TOML file") from None
    try:
        tables = tomllib.loads(content.decode("utf-8-sig"))  # some editors begin UTF-8 with a mark
    except UnicodeDecodeError as problem:
        raise SpecError([Problem("", f"not UTF-8 text (byte {problem.start}); save the file as UTF-8")]) from None
    except tomllib.TOMLDecodeError as problem:
        raise SpecError([Problem("", f"not TOML: {problem}")]) from None
    if not tables:
        raise SpecError([Problem("", "the file is empty; `fedleak show spec default` prints one to start from")])
    return make_spec(tables, changes, allow_code=allow_code, model=model)


def make_spec(
    tables: Mapping[str, Any],
    changes: Sequence[tuple[str, Any]] = (),
    *,
    allow_code: bool = False,
    model: Callable[[], Any] | None = None,
) -> Spec:
    """Check plain tables and make a Spec. `model` is a live constructor that replaces [model]."""
    found = Findings()
    for path, value in changes:
        try:
            tables = assign(tables, path, value)
        except (KeyError, IndexError, ValueError, TypeError):
            found.add(f"--set {path}", nowhere(tables, path))
    for key in tables:
        if key not in TOP_LEVEL:
            found.add(key, unknown_key(key, TOP_LEVEL))
    if model is not None:
        tables = {**tables, "model": {"name": name_of(model)}}
    metrics = _metrics(tables.get("metrics", list(DEFAULT_METRICS)), found)
    seeds = _seeds(tables.get("seeds", [0]), found)
    threshold = _number(tables, "threshold", "a number of dB", found)
    time_limit = _number(tables, "time_limit", "a number of seconds above 0", found)
    if time_limit is not None and not time_limit > 0:
        found.add("time_limit", f"must be a number of seconds above 0, found {time_limit!r}")
    points: list[Point] = []
    first: list[Point] = []
    labels: set[str] = set()
    for case in _cases(tables, found):
        own: list[Point] = []
        for where, point_tables in expand(case, found):
            arms = tuple(Arm(*made) for made in build_arms(point_tables.get("defenses", []), found))
            labels |= {arm.label for arm in arms}
            point = _point(point_tables, where, arms, found, allow_code=allow_code, model=model)
            if point is not None:
                own.append(point)
        _every_attack_has_a_use(case, own, found)
        check_rounds(own, found)
        first, points = first or own, [*points, *own]
    deployed = _deployed(tables.get("deployment"), labels, found)
    found.raise_if_any()
    resolved_tables = resolved_spec(tables, first, metrics, seeds)
    return Spec(resolved_tables, tuple(points), metrics, seeds, threshold, time_limit, deployed)


def _cases(tables: Mapping[str, Any], found: Findings) -> list[dict[str, Any]]:
    """The tables themselves, and one set for every [[cases]] entry: what it names replaces what stands above it."""
    base = {key: value for key, value in tables.items() if key != "cases"}
    given = tables.get("cases", [])
    if not isinstance(given, list) or any(not isinstance(case, Mapping) for case in given):
        found.add("cases", f"must be a list of tables ([[cases]]), found {given!r}")
        return [base]
    for number, case in enumerate(given):
        for key in case:
            if key not in LAID_OVER:
                found.add(f"cases.{number}.{key}", unknown_key(key, LAID_OVER))
    return [base, *({**{k: v for k, v in base.items() if k != "sweep"}, **case} for case in given)]


def _metrics(given: Any, found: Findings) -> tuple[str, ...]:
    known = registry("metrics")
    if not isinstance(given, list) or not given:
        found.add("metrics", f"must be a list of names, found {given!r}")
        return ()
    for number, name in enumerate(given):
        if name not in known:
            found.add(f"metrics.{number}", unknown_name("metric", name, known))
    return tuple(str(name) for name in given)


def _number(tables: Mapping[str, Any], key: str, rule: str, found: Findings) -> float | None:
    given = tables.get(key)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        found.add(key, f"must be {rule}, found {given!r}")
        return None
    return float(given)


def _seeds(given: Any, found: Findings) -> tuple[int, ...]:
    whole = isinstance(given, list) and all(isinstance(s, int) and not isinstance(s, bool) for s in given)
    if not whole or not given or len(set(given)) != len(given) or min(given) < 0:
        found.add("seeds", f"must be a list of different whole numbers, 0 or larger, found {given!r}")
        return (0,)
    return tuple(given)


def _point(
    tables: Mapping[str, Any],
    where: Mapping[str, Any],
    arms: tuple[Arm, ...],
    found: Findings,
    *,
    allow_code: bool,
    model: Callable[[], Any] | None,
) -> Point | None:
    """None where the protocol is not known. A point whose data or model has a problem is checked all the same, so that
    all problems come at once; it never runs."""
    data, (model_name, model_arguments), named = build_point_parts(tables, found, own_model=model is not None)
    attacks = tuple(AttackChoice(*made) for made in build_attacks(tables.get("attacks", []), found))
    factory = model
    if factory is None and ":" in model_name:
        try:
            factory = load_code(model_name, allow_code)
        except RefusedError as problem:
            found.add("model.name", str(problem))
    if named is None:
        return None
    protocol_name, protocol = named
    for arm in arms:
        check_defenses(arm.names, arm.defenses, protocol_name, protocol.sends, found)
    spec = ModelSpec(model_name, model_arguments, factory)
    readable = tuple(
        choice
        for choice in attacks
        if protocol.sends in choice.attack.reads and (not choice.on or protocol_name in choice.on)
    )
    if data is not None:
        chosen = [(choice.name, choice.attack) for choice in readable]
        check_public(data, protocol_name, protocol, chosen, found)
        check_dropped(data, protocol, arms, found)
        check_history(data, protocol, arms, chosen, found)
        check_sums(protocol, arms, chosen, found)
    for choice in readable:
        known = frozenset(protocol.disclose)
        needs = choice.attack.needs | (choice.attack.needs_from_weights if _sends_weights(protocol) else frozenset())
        if missing := sorted(needs - known):
            found.add(
                "protocol.disclose",
                f"attack {choice.name!r} needs {', '.join(missing)}, which {protocol_name} does not disclose here; "
                "add it to protocol.disclose or leave the attack out",
            )
    return Point(data, spec, protocol_name, protocol, arms, readable, where)


def _sends_weights(protocol: Any) -> bool:
    return bool(protocol.sends.__name__ == "Weights")


def _every_attack_has_a_use(tables: Mapping[str, Any], points: Sequence[Point], found: Findings) -> None:
    """In a sweep an attack runs where it can read what is sent; an attack that can nowhere is a mistake."""
    given = tables.get("attacks", [])
    if not points or not isinstance(given, list):
        return
    used = {choice.name for point in points for choice in point.attacks}
    protocols = sorted({point.protocol_name for point in points})
    for number, entry in enumerate(given):
        name = str(entry.get("name")) if isinstance(entry, Mapping) else ""
        if name in registry("attacks") and name not in used and f"attacks.{number}" not in found.troubled():
            reads = ", ".join(kind.__name__.lower() for kind in registry("attacks")[name].reads)
            sends = ", ".join(sorted({point.protocol.sends.__name__.lower() for point in points}))
            found.add(
                f"attacks.{number}.name",
                f"{name!r} reads {reads}, but {', '.join(protocols)} sends {sends}; choose another attack or protocol",
            )


def _deployed(given: Any, labels: Iterable[str], found: Findings) -> str | None:
    if given is None:
        return None
    arm = given.get("arm") if isinstance(given, Mapping) else None
    if not isinstance(arm, str) or set(given) != {"arm"}:
        found.add("deployment", f'must be a table with the one key arm = "...", found {given!r}')
        return None
    if (known := sorted(labels)) and arm not in known:
        others = ", and those whose defenses have a problem" if "defenses" in found.troubled() else ""
        found.add(
            "deployment.arm",
            f"no arm {arm!r}{did_you_mean(arm, known)}; the arms are {', '.join(map(repr, known))}{others}",
        )
    return arm
