"""`fedleak check`: read a specification, say all that is wrong with it, run nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedleak.audit.spec import Spec, read_spec
from fedleak.audit.toml import parse_assignment
from fedleak.commands.output import print_json, say, warn
from fedleak.components import resolved
from fedleak.errors import FedleakError, Problem, SpecError
from fedleak.files import digest
from fedleak.report.words import plural

__all__ = ["check_command"]


def check_command(source: Path, *, changes: Sequence[str], allow_code: bool, as_json: bool) -> int:
    try:
        spec = read_spec(source, [parse_assignment(text) for text in changes], allow_code=allow_code)
    except FedleakError as problem:
        listed = problem.problems if isinstance(problem, SpecError) else [Problem("", str(problem))]
        warn(str(problem))
        if as_json:
            print_json({"ok": False, "problems": [{"path": p.path, "message": p.message} for p in listed]})
        return 2
    arms = {arm.label for point in spec.points for arm in point.arms}
    attacks = len(_trials(spec)) * len(spec.seeds)
    counts = {"points": len(spec.points), "arms": len(arms), "seeds": len(spec.seeds), "attack_trials": attacks}
    if as_json:
        print_json({"ok": True, "problems": [], **counts})
    else:
        say(
            f"{source}: fine. {plural(len(spec.points), 'federation settings')}, {plural(len(arms), 'arms')}, "
            f"{plural(len(spec.seeds), 'seeds')}: {plural(attacks, 'attack trials')}"
        )
    return 0


def _trials(spec: Spec) -> set[str]:
    """The attacks of one seed. A sweep of one defense or attack leaves the others as they are: they count once."""
    return {
        digest(
            {
                "data": resolved(point.data),
                "model": [point.model.name, dict(point.model.arguments)],
                "protocol": [point.protocol_name, resolved(point.protocol)],
                "arm": [arm.label, arm.describe(), choice.own(point.where_of(arm))],
                "attack": choice.describe(),
            }
        )
        for point in spec.points
        for arm in point.arms
        for choice in point.attacks
    }
