"""Which pictures a report shows: the worst case large, one image's way, then every arm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fedleak.report.arms import Arm
from fedleak.report.blobs import Blobs
from fedleak.report.pictures import MOST, Pair, Sheet, Strip, pairs_of, sheet_of, strip_of
from fedleak.report.tables import Summary
from fedleak.report.words import defense_name, plural, prose

__all__ = ["Gallery", "gallery_of"]


@dataclass(frozen=True)
class Gallery:
    """`sheets` are (title, sheet), one per federation and attack."""

    headline: str
    pairs: tuple[Pair, ...]
    strip: Strip | None
    sheets: tuple[tuple[str, Sheet], ...]
    threshold: str
    left_out: str


def gallery_of(
    federations: Sequence[tuple[str, Sequence[Arm]]],
    strongest: Callable[[Iterable[Summary]], Summary | None],
    blobs: Blobs,
) -> Gallery | None:
    """None where no row has pictures."""
    places = [(title, arm, found) for title, arms in federations for arm in arms for found in arm.attacks]
    pictured = [place for place in places if any("images" in row.artifacts for row in place[2].rows)]
    free = [found for _, arm, found in pictured if not arm.defended] or [found for _, _, found in pictured]
    worst = strongest(free)
    if worst is None:
        return None
    title = next(title for title, _, found in pictured if found is worst)
    pairs = pairs_of(worst, blobs)
    sheets = []
    for federation in dict.fromkeys(title for title, _, _ in pictured):
        mine = [found for name, _, found in pictured if name == federation]
        for attack in dict.fromkeys(_attack(found) for found in mine):
            sheet = sheet_of([found for found in mine if _attack(found) == attack], blobs)
            # A sheet of one line would repeat the large pairs above it.
            if sheet is not None and (len(sheet.lines) > 1 or sheet.lines[0][0] is not worst):
                sheets.append((f"{federation} · {attack}", sheet))
    if not pairs and not sheets:
        return None
    others = [found for _, _, found in pictured if found is not worst]
    thresholds = sorted({value for _, _, found in pictured for value in found.thresholds})
    most = max(found.images for _, _, found in pictured)
    return Gallery(
        headline=f"{title} · {_attack(worst)} · {defense_name(worst.where)}",
        pairs=tuple(pairs),
        strip=strip_of([worst, *others], blobs),
        sheets=tuple(sheets),
        threshold=prose(f"{value:g} dB" for value in thresholds),
        left_out=f"Shown are the first {MOST} of up to {plural(most, 'images')} of an arm; the numbers below count all."
        if most > MOST
        else "",
    )


def _attack(found: Summary) -> str:
    extra = [f"{key} = {value}" for key, value in found.where.items() if key.startswith("attack.")]
    return ", ".join([str(found.where.get("attack")), *extra])
