"""What to keep in mind when reading the verdict: few images, one seed, failures, lucky guesses, untrained models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fedleak.report.arms import Arm
from fedleak.report.beside import Facts, no_facts, pictured, twins_words
from fedleak.report.summaries import Summary
from fedleak.report.words import between, cases, percent, plural, prose, sent_by, subjects

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


def caveats_of(arms: Sequence[Arm], worst: Sequence[Summary], facts: Facts = no_facts) -> tuple[str, ...]:
    """`worst` are the worst cases that the verdict names, one of every kind."""
    attacks = [found for arm in arms for found in arm.attacks]
    found = [_how_trials_ended(attacks)]
    found += [_luck(one) for one in worst]
    found += [_few(one) for one in worst]
    found += [_twins(attacks, facts)]
    if worst:
        found += [_seeds(attacks), _recognisable(attacks)]
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
    """Of copies and counts, and of the prior, the sentences say what a guess gets."""
    null = worst.success_null
    if null is None or null.mean <= 0 or worst.kind in ("model", "counts") or null.name == "prior":
        return ""
    reach = (
        f"{percent(null.mean)} at the same threshold"
        if worst.kind == "images"
        else cases(round(null.mean * worst.images), worst.images)
    )
    if null.name == "other_client":
        # From the public images of the same people, or from the owner through what the server sends to everybody.
        return (
            f"The messages of a client that never held the class yield {reach} (other client): what lies above that is "
            "what the owner's own messages add."
        )
    return (
        f"Somebody who saw nothing of what was sent reaches {reach} ({null.name.replace('_', ' ')}): "
        "only what lies above that is a leak."
    )


def _few(worst: Summary) -> str:
    if worst.images >= FEW or worst.success is None:
        return ""
    if worst.success.degenerate:
        what = "image" if worst.kind == "images" else worst.things.removesuffix("s")
        return f"One {what} was attacked: what happened to it says little about the next."
    name = "images" if worst.kind == "images" else worst.things
    return (
        f"{worst.images} {name} are few: {cases(worst.hits, worst.images)} is compatible with a true share "
        f"from {between('recovered', worst.success)} (95 %)."
    )


def _twins(attacks: Iterable[Summary], facts: Facts) -> str:
    """Once per federation: the public set is the same for all its attacks."""
    shared = [found for found in attacks if sent_by(found.where.get("protocol")) == "predictions"]
    said = (twins_words(pictured(found, facts)) for found in shared if found.kind == "classes")
    return " ".join(dict.fromkeys(text for text in said if text))


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
