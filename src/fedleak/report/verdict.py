"""The verdict: what was recovered, from whom, knowing what, and what the strongest defense does about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedleak.report.arms import Arm
from fedleak.report.beside import Facts, no_facts, pictured
from fedleak.report.caveats import caveats_of
from fedleak.report.kinds import KINDS, Kind
from fedleak.report.levels import LEVELS, Level, above_a_guess, level_of, resembling, strongest, worst_first
from fedleak.report.sentences import badge, gained, leaked, left_to_see, said_of_deployed, still_leaks, stopped
from fedleak.report.summaries import Summary
from fedleak.report.tables import is_defended
from fedleak.report.words import percent, plural, points, prose, sent_by

__all__ = ["Findings", "Level", "Verdict", "judge", "level_of"]

Findings = tuple[tuple[Level, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Verdict:
    """Plain sentences and how bad it is. `level` is about the deployed arm where the spec names one. `findings` has one
    entry per kind of finding, the worst first: its level and its sentences."""

    level: Level
    badge: str
    findings: Findings
    deployed: tuple[tuple[Level, str], ...] = ()
    caveats: tuple[str, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(text for _, texts in self.findings for text in texts)


def judge(arms: Sequence[Arm], deployed_arm: str | None = None, facts: Facts = no_facts) -> Verdict:
    """The worst undefended case of every kind, the strongest defense against it, the deployed arm, and caveats.

    `facts` gives what was stored beside the scores of a row.
    """
    attacks = [found for arm in arms for found in arm.attacks]
    deployed = tuple(line for arm in arms if arm.deployed for line in _as_deployed(arm))
    if deployed_arm is not None and not deployed:
        deployed = (("unknown", f"As deployed ({deployed_arm}): no trial of this arm has finished: nothing is known."),)
    each = (_worst([found for found in attacks if found.kind == kind]) for kind in KINDS)
    worst = worst_first(found for found in each if found is not None)
    if not worst:
        nothing: Findings = (("unknown", (_nothing_judged(attacks),)),)
        return Verdict("unknown", "No verdict", nothing, deployed, caveats_of(arms, (), facts))
    gated = worst
    if deployed_arm is not None:
        own = (arm.strongest_of(kind) for arm in arms if arm.deployed for kind in arm.kinds)
        gated = worst_first(found for found in own if found is not None)
    none: Level = "unknown"
    level = max((level_of(found) for found in gated), key=LEVELS.index, default=none)
    head = ("As deployed: " if deployed_arm is not None else "") + _badge(level, gated)
    findings = tuple((level_of(found), _sentences(found, arms, facts)) for found in worst)
    return Verdict(level, head[0].upper() + head[1:], findings, deployed, caveats_of(arms, worst, facts))


def _sentences(worst: Summary, arms: Sequence[Arm], facts: Facts) -> tuple[str, ...]:
    own = next(arm for arm in arms if worst in arm.attacks)
    found = [leaked(worst, arms)]
    if worst.kind == "classes":
        found.append(gained(pictured(worst, facts)))
    if _got_something(worst):
        found.append(_what_the_strongest_defense_does(own, arms, worst.kind))
    return tuple(text for text in found if text)


def _got_something(found: Summary) -> bool:
    """An image above the threshold is a leak to look at, whatever a guess gets; all else must beat the guess."""
    return bool(found.hits) if found.kind == "images" else above_a_guess(found)


def _worst(attacks: Sequence[Summary]) -> Summary | None:
    """The strongest attack without a defense; a defended one only where no undefended one got anything."""
    free = strongest(found for found in attacks if not is_defended(found.where))
    if free is not None and _got_something(free):
        return free
    anywhere = strongest(attacks)
    return anywhere if free is None or (anywhere is not None and _got_something(anywhere)) else free


def _badge(level: Level, gated: Sequence[Summary]) -> str:
    """The kinds that are as bad as it gets."""
    if level == "unknown":
        return "no verdict"
    kinds = {found.kind for found in gated}
    if level == "unrecovered" and len(kinds) > 1:
        return "nothing recovered by these attacks"
    return prose(dict.fromkeys(badge(level, found) for found in gated if level_of(found) == level))


def _nothing_judged(attacks: Sequence[Summary]) -> str:
    if not attacks:
        return "No attack has finished in this run folder, so nothing can be said about what leaks."
    victims = sum(len(found.rows) for found in attacks)
    return (
        f"None of the {plural(victims, 'attacked updates')} could be judged, so nothing can be said about what leaks."
    )


def _what_the_strongest_defense_does(own: Arm, arms: Sequence[Arm], kind: Kind) -> str:
    """Against the strongest attack on each arm of the same federation, not only the one that was worst undefended."""
    rivals = [arm for arm in arms if arm.panel == own.panel and arm.defended and arm is not own]
    tried = [(arm, found) for arm in rivals if (found := arm.strongest_of(kind)) is not None]
    before = own.strongest_of(kind)
    if own.defended or not tried or before is None:
        return ""

    def order(pair: tuple[Arm, Summary]) -> tuple[float, float, float]:
        arm, found = pair
        close = next((found.scores[name].mean for name in ("psnr", "ssim", "fidelity") if name in found.scores), 0.0)
        return _share(found), -(arm.utility.mean if arm.utility is not None else 0.0), close

    best, found = min(tried, key=order)
    attack, price, (verb, what_left) = found.where.get("attack"), _price(best, own), still_leaks(found)
    if _share(found) == 0:
        what = "it" if sum(one.kind == kind for one in best.attacks) == 1 else "the attacks that were run"
        place = f" in {best.where.get('protocol')}" if any(arm.panel != own.panel for arm in arms) else ""
        left = left_to_see(resembling(best.attacks)) if kind == "images" else ""
        return f"{best.title} stops {what}{place} ({stopped(found)}){price}.{left}"
    if _share(found) < _share(before):
        return f"The strongest defense tried, {best.title}, still lets {attack} {verb} {what_left}{price}."
    return f"No defense that was tried lowers this: with {best.title}, {attack} {verb}s {what_left}{price}."


def _share(found: Summary) -> float:
    """What an attack gets; of all kinds but images, nothing where a guess gets as much."""
    if found.success is None:
        return 1.0
    return found.success.mean if _got_something(found) else 0.0


def _price(arm: Arm, free: Arm) -> str:
    if arm.cost is None or arm.utility is None:
        return "; what it costs in test accuracy was not measured"
    if free.hardly_learned:
        return "; what it costs cannot be told, because the undefended model hardly learned"
    before, after = percent(arm.utility.mean + arm.cost.mean), percent(arm.utility.mean)
    if round(100 * arm.cost.mean, 1) <= 0:
        return f", at no measured cost in test accuracy ({after}, {before} without it)"
    return f", at a cost of {points(arm.cost.mean)} of test accuracy ({after} instead of {before})"


def _left(arm: Arm, found: Summary) -> str:
    return left_to_see(resembling(arm.attacks)) if found.kind == "images" and not found.hits else ""


def _as_deployed(arm: Arm) -> list[tuple[Level, str]]:
    name = f"As deployed ({arm.where.get('protocol')}, {arm.title})"
    known = worst_first(found for kind in arm.kinds if (found := arm.strongest_of(kind)) is not None)
    if not known:
        return [("unknown", f"{name}: no attack could be judged, so nothing is known of it.")]
    own = sent_by(arm.where.get("protocol")) == "predictions"
    model = "The clients' models reach on average" if own else "The model reaches"
    worth = f" {model} {percent(arm.utility.mean)} test accuracy." if arm.utility is not None else ""
    lines = [(level_of(found), f"{name}: {said_of_deployed(found)}{_left(arm, found)}") for found in known]
    return [(lines[0][0], lines[0][1] + worth), *lines[1:]]
