"""The verdict: what was recovered, from whom, knowing what, and what the best defense does about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedleak.report.arms import Arm, strongest
from fedleak.report.caveats import caveats_of
from fedleak.report.tables import Summary, is_defended, swept
from fedleak.report.words import (
    cases,
    defense_name,
    knowledge,
    percent,
    plural,
    points,
    prose,
    sent_by,
    setting,
    subjects,
)

__all__ = ["Level", "Verdict", "judge", "level_of"]

Level = Literal["severe", "partial", "unrecovered", "unknown"]


@dataclass(frozen=True)
class Verdict:
    """Plain sentences and how bad it is. `level` is about the deployed arm where the spec names one."""

    level: Level
    badge: str
    sentences: tuple[str, ...]
    deployed: tuple[tuple[Level, str], ...] = ()
    caveats: tuple[str, ...] = ()


def judge(arms: Sequence[Arm], deployed_arm: str | None = None) -> Verdict:
    """The worst undefended case, the best defense against it, the deployed arm, and what to keep in mind."""
    attacks = [found for arm in arms for found in arm.attacks]
    deployed = tuple(_as_deployed(arm) for arm in arms if arm.deployed)
    if deployed_arm is not None and not deployed:
        deployed = (("unknown", f"As deployed ({deployed_arm}): no trial of this arm has finished: nothing is known."),)
    worst = _worst(attacks)
    if worst is None:
        return Verdict("unknown", "No verdict", (_nothing_judged(attacks),), deployed, caveats_of(arms, None))
    own = next(arm for arm in arms if worst in arm.attacks)
    sentences = [_what_was_recovered(worst, arms)]
    if worst.recovered_images and (answer := _what_the_best_defense_does(own, arms)):
        sentences.append(answer)
    gated = [arm.strongest for arm in arms if arm.deployed] or [None if deployed_arm is not None else worst]
    level = max((level_of(found) for found in gated), key=("unknown", "unrecovered", "partial", "severe").index)
    badge = ("As deployed: " if deployed_arm is not None else "") + _badge(level, gated)
    return Verdict(level, badge[0].upper() + badge[1:], tuple(sentences), deployed, caveats_of(arms, worst))


def level_of(found: Summary | None) -> Level:
    """How bad: at least half recovered, some, none (or no more than a guess), or nothing judged."""
    if found is None or found.recovered is None:
        return "unknown"
    if not _beats_a_guess(found):
        return "unrecovered"
    return "severe" if found.recovered.mean >= 0.5 else "partial"


def _beats_a_guess(found: Summary) -> bool:
    null = found.nulls.get("recovered")
    return found.recovered is not None and found.recovered.mean > (null.mean if null is not None else 0.0)


def _worst(attacks: Sequence[Summary]) -> Summary | None:
    """The strongest attack without a defense; a defended one only where no undefended one recovered anything."""
    free = strongest(found for found in attacks if not is_defended(found.where))
    if free is not None and free.recovered_images:
        return free
    anywhere = strongest(attacks)
    return anywhere if free is None or (anywhere is not None and anywhere.recovered_images) else free


def _badge(level: Level, gated: Sequence[Summary | None]) -> str:
    what = (
        prose(dict.fromkeys(subjects(found.where.get("dataset")) for found in gated if found is not None)) or "images"
    )
    if level == "unknown":
        return "no verdict"
    if level == "unrecovered":
        guess = any(found is not None and found.recovered_images for found in gated)
        return "recovered no more than a guess" if guess else f"no {what} recovered by these attacks"
    return f"private {what} recovered" if level == "severe" else f"some private {what} recovered"


def _nothing_judged(attacks: Sequence[Summary]) -> str:
    if not attacks:
        return "No attack has finished in this run folder, so nothing can be said about what leaks."
    victims = sum(len(found.rows) for found in attacks)
    return (
        f"None of the {plural(victims, 'attacked updates')} could be judged, so nothing can be said about what leaks."
    )


def _what_was_recovered(worst: Summary, arms: Sequence[Arm]) -> str:
    where = worst.where
    things, protocol = subjects(where.get("dataset")), where.get("protocol")
    source = f"from the {sent_by(protocol)} that {plural(worst.clients, 'clients')} sent in {protocol}"
    defense = f"With {defense_name(where)}"
    extra = setting(where, swept(found for arm in arms for found in arm.attacks))
    if worst.recovered_images:
        aside = f" ({extra})" if extra else ""
        count = cases(worst.recovered_images, worst.images)
        return (
            f"{defense}, {where.get('attack')} recovered {count} {things} {source}{aside}, {knowledge(worst.granted)}."
        )
    names = list(dict.fromkeys(str(found.where.get("attack")) for arm in arms for found in arm.attacks if found.images))
    tried = any(arm.defended and arm.strongest for arm in arms) and not is_defended(where)
    defense = "With or without a defense" if tried else defense
    return (
        f"{defense}, none of the {plural(worst.images, things)} was recovered {source} by "
        f"the {'attack that was' if len(names) == 1 else 'attacks that were'} run ({prose(names)}). "
        "That is no proof that nothing leaks: a stronger attack may still succeed."
    )


def _what_the_best_defense_does(own: Arm, arms: Sequence[Arm]) -> str:
    """Against the strongest attack on each arm of the same federation, not only the one that was worst undefended."""
    rivals = [arm for arm in arms if arm.panel == own.panel and arm.defended and arm.strongest and arm is not own]
    if own.defended or not rivals:
        return ""

    def share(arm: Arm) -> float:
        found = arm.strongest
        return found.recovered.mean if found is not None and found.recovered is not None else 1.0

    def order(arm: Arm) -> tuple[float, float, float]:
        found = arm.strongest
        psnr = found.scores.get("psnr") if found is not None else None
        worth = arm.utility.mean if arm.utility is not None else 0.0
        return share(arm), -worth, psnr.mean if psnr is not None else 0.0

    best = min(rivals, key=order)
    found = best.strongest
    assert found is not None
    count, attack = cases(found.recovered_images, found.images), found.where.get("attack")
    price = _price(best, own)
    if share(best) == 0:
        what = "it" if len(best.attacks) == 1 else "the attacks that were run"
        place = f" in {best.where.get('protocol')}" if any(arm.panel != own.panel for arm in arms) else ""
        return f"{best.defense} stops {what}{place} ({count}{_above(found)}){price}."
    if share(best) < share(own):
        return f"The best defense tried, {best.defense}, still lets {attack} recover {count}{price}."
    return f"No defense that was tried lowers this: with {best.defense}, {attack} recovers {count}{price}."


def _above(found: Summary) -> str:
    return f" above {found.thresholds[0]:g} dB" if len(found.thresholds) == 1 else ""


def _price(arm: Arm, free: Arm) -> str:
    if arm.cost is None or arm.utility is None:
        return "; what it costs in test accuracy was not measured"
    if free.hardly_learned:
        return "; what it costs cannot be told, because the undefended model hardly learned"
    before, after = percent(arm.utility.mean + arm.cost.mean), percent(arm.utility.mean)
    if round(100 * arm.cost.mean, 1) <= 0:
        return f", at no measured cost in test accuracy ({after}, {before} without it)"
    return f", at a cost of {points(arm.cost.mean)} of test accuracy ({after} instead of {before})"


def _as_deployed(arm: Arm) -> tuple[Level, str]:
    found = arm.strongest
    name = f"As deployed ({arm.where.get('protocol')}, {arm.title})"
    if found is None:
        return "unknown", f"{name}: no attack could be judged, so nothing is known of it."
    things = subjects(found.where.get("dataset"))
    worth = f" The model reaches {percent(arm.utility.mean)} test accuracy." if arm.utility is not None else ""
    if not found.recovered_images:
        return level_of(found), (
            f"{name}: none of the {plural(found.images, things)} was recovered by the attacks that were run; "
            f"that is no proof.{worth}"
        )
    count = cases(found.recovered_images, found.images)
    return level_of(found), f"{name}: {found.where.get('attack')} recovered {count} {things}.{worth}"
