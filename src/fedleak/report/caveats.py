"""What to keep in mind when reading the verdict: few images, one seed, failures, lucky guesses, untrained models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fedleak.report.arms import Arm
from fedleak.report.tables import Summary
from fedleak.report.words import between, cases, percent, plural, prose, subjects

__all__ = ["caveats_of"]

FEW = 30
"""Below this many images the verdict says how little they can exclude."""

ENDED = {
    "diverged": "diverged (judged by the last finite image)",
    "refused": "were refused",
    "failed": "failed",
    "out_of_memory": "ran out of memory",
    "timed_out": "timed out",
}


def caveats_of(arms: Sequence[Arm], worst: Summary | None) -> tuple[str, ...]:
    attacks = [found for arm in arms for found in arm.attacks]
    found = [_how_trials_ended(attacks)]
    if worst is not None:
        found += [_luck(worst), _few(worst), _seeds(attacks), _recognisable(attacks)]
    found.append(_not_trained(arms))
    return tuple(text for text in found if text)


def _how_trials_ended(attacks: Iterable[Summary]) -> str:
    ends: Counter[str] = Counter()
    for found in attacks:
        ends.update(found.status)
    total = sum(ends.values())
    bad = [f"{count} {ENDED.get(status, status)}" for status, count in sorted(ends.items()) if status != "ok"]
    return f"Of {plural(total, 'attacked updates')}, {prose(bad)}." if bad else ""


def _luck(worst: Summary) -> str:
    null = worst.nulls.get("recovered")
    if null is None or null.mean <= 0:
        return ""
    return (
        f"Somebody who saw nothing of what was sent reaches {percent(null.mean)} at the same threshold "
        f"({null.name.replace('_', ' ')}): only what lies above that is a leak."
    )


def _few(worst: Summary) -> str:
    if worst.images >= FEW or worst.recovered is None:
        return ""
    if worst.recovered.degenerate:
        return "One image was attacked: what happened to it says little about the next."
    return (
        f"{worst.images} images are few: {cases(worst.recovered_images, worst.images)} is compatible with a true share "
        f"from {between('recovered', worst.recovered)} (95 %)."
    )


def _seeds(attacks: Iterable[Summary]) -> str:
    seeds = {seed for found in attacks for seed in found.seeds}
    return (
        "One seed ran: the intervals do not cover a repetition with other starts and other data."
        if len(seeds) == 1
        else ""
    )


def _not_trained(arms: Iterable[Arm]) -> str:
    flat = [arm for arm in arms if not arm.defended and arm.hardly_learned]
    if not flat:
        return ""
    levels = prose(
        f"{percent(arm.learned[0])} before and {percent(arm.learned[-1])} after training in {arm.where.get('protocol')}"
        for arm in flat
    )
    return f"Without a defense the model hardly learned (test accuracy {levels}): the cost of a defense is not known."


def _recognisable(attacks: Iterable[Summary]) -> str:
    """A threshold is a line in the sand: SSIM and PSNR may call a face no better than a guess that is plain to see."""
    for found in attacks:
        if found.images and not found.recovered_images and found.thresholds:
            things = subjects(found.where.get("dataset"))
            limit = prose(f"{value:g} dB" for value in found.thresholds)
            return (
                f"Recovered means a PSNR above {limit}. Below that, {things} can still be recognisable: "
                "look at the pictures before you rely on a defense."
            )
    return ""
