"""How bad a finding is, for every kind by its own measure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from fedleak.report.kinds import KINDS
from fedleak.report.summaries import Summary

__all__ = ["LEVELS", "Level", "above_a_guess", "copied_share", "level_of", "resembling", "strongest", "worst_first"]

Level = Literal["severe", "partial", "unrecovered", "unknown"]

LEVELS: tuple[Level, ...] = ("unknown", "unrecovered", "partial", "severe")
"""From the least to the worst."""


def level_of(found: Summary | None) -> Level:
    """How bad: at least half, some, none (or no more than a guess), or nothing judged.

    Half of what: of the images, of the classes, of the way from a guess to the victim's accuracy. Label counts say what
    a client holds and show none of it: never more than partial.
    """
    if found is None or found.success is None:
        return "unknown"
    if not above_a_guess(found):
        return "unrecovered"
    if found.kind == "counts":
        return "partial"
    share = copied_share(found) if found.kind == "model" else found.success.mean
    return "severe" if share >= 0.5 else "partial"


def above_a_guess(found: Summary) -> bool:
    """Whether the attack got more than somebody who saw nothing.

    Of pictures of classes and of copied models the whole interval must lie above: noise, too, is most like somebody,
    and any network is right about some images.
    """
    if found.success is None:
        return False
    guess = found.success_null.mean if found.success_null is not None else 0.0
    sure = found.success.low > guess or found.kind not in ("classes", "model")
    return found.success.mean > guess and sure


def resembling(attacks: Iterable[Summary]) -> Summary | None:
    """The attack whose images are most like the originals, where even the low end of its SSIM lies above a guess's.

    A threshold of PSNR does not count them, and an eye may still recognise them. None where there is no such attack.
    """

    def surely(found: Summary) -> bool:
        ssim, guess = found.scores.get("ssim"), found.nulls.get("ssim")
        known = ssim is not None and guess is not None and not ssim.degenerate
        return known and found.kind == "images" and ssim.low > guess.mean  # type: ignore[union-attr]

    return max(filter(surely, attacks), key=lambda found: found.scores["ssim"].mean, default=None)


def copied_share(found: Summary) -> float:
    """How far a copy comes from a guess (0) to the victim (1); against a perfect model where the victim is not known.
    A victim that is no better than a guess has nothing to copy."""
    guess = found.success_null.mean if found.success_null is not None else 0.0
    victim = found.scores["victim_accuracy"].mean if "victim_accuracy" in found.scores else 1.0
    if found.success is None or victim <= guess:
        return 0.0
    return (found.success.mean - guess) / (victim - guess)


def strongest(attacks: Iterable[Summary]) -> Summary | None:
    """The attack that got the largest share, then the one that was told least, then the one with the closest images or
    the most faithful copy; None where none was judged. Of several kinds the worst.

    Of pictures of classes, copies and counts one that beats its guess goes before all that do not: an attack whose
    prior knows everybody already says nothing, and must not stand before one without a prior that does."""
    best = []
    judged = [found for found in attacks if found.success is not None]
    for kind in KINDS:
        found = max((found for found in judged if found.kind == kind), key=_strength, default=None)
        best += [] if found is None else [found]
    return next(iter(worst_first(best)), None)


def worst_first(found: Iterable[Summary]) -> list[Summary]:
    """By level, then in the order of the kinds."""
    return sorted(found, key=lambda one: (-LEVELS.index(level_of(one)), KINDS.index(one.kind)))


def _strength(found: Summary) -> tuple[bool, float, int, float]:
    beats = found.kind != "images" and above_a_guess(found)
    share = found.success.mean if found.success is not None else 0.0
    close = next((found.scores[name].mean for name in ("psnr", "ssim", "fidelity") if name in found.scores), 0.0)
    return beats, share, -len(found.granted), close
