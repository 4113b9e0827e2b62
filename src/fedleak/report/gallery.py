"""Which pictures a report shows: the worst case of each kind large, one image's way, then every arm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fedleak.report.arms import Arm
from fedleak.report.blobs import Blobs
from fedleak.report.kinds import Kind, one_of
from fedleak.report.levels import worst_first
from fedleak.report.pictures import MOST, Pair, Sheet, Strip, pairs_of, sheet_of, strip_of
from fedleak.report.tables import Summary
from fedleak.report.words import defense_name, plural, prose, recipe

__all__ = ["Gallery", "Large", "gallery_of"]

Place = tuple[str, Arm, Summary]


@dataclass(frozen=True)
class Large:
    """The worst case of one kind. `note` says what stands left and right."""

    kind: Kind
    note: str
    headline: str
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class Gallery:
    """`sheets` are (title, sheet), one per federation and attack."""

    large: tuple[Large, ...]
    strip: Strip | None
    sheets: tuple[tuple[str, Sheet], ...]
    left_out: str


def gallery_of(
    federations: Sequence[tuple[str, Sequence[Arm]]],
    strongest: Callable[[Iterable[Summary]], Summary | None],
    blobs: Blobs,
) -> Gallery | None:
    """None where no row has pictures."""
    places = [(title, arm, found) for title, arms in federations for arm in arms for found in arm.attacks]
    pictured = [place for place in places if any("images" in row.artifacts for row in place[2].rows)]
    worst = []
    for kind in dict.fromkeys(found.kind for _, _, found in pictured):
        mine = [(arm, found) for _, arm, found in pictured if found.kind == kind]
        found = strongest([found for arm, found in mine if not arm.defended] or [found for _, found in mine])
        worst += [] if found is None else [found]
    if not worst:
        return None
    large = [one for found in worst_first(worst) if (one := _large(found, pictured, blobs)).pairs]
    sheets = []
    for federation in dict.fromkeys(title for title, _, _ in pictured):
        tried = [found for name, _, found in pictured if name == federation]
        names = [recipe(found.where, [other.where for other in tried]) for found in tried]
        for attack in dict.fromkeys(names):
            sheet = sheet_of([found for found, name in zip(tried, names, strict=True) if name == attack], blobs)
            # A sheet of one line would repeat the large pairs above it.
            if sheet is not None and (len(sheet.lines) > 1 or not any(sheet.lines[0][0] is one for one in worst)):
                sheets.append((f"{federation} · {attack}", sheet))
    if not large and not sheets:
        return None
    others = [found for _, _, found in pictured if not any(found is one for one in worst)]
    most = max(found.images for _, _, found in pictured)
    return Gallery(
        large=tuple(large),
        strip=strip_of([*worst, *others], blobs),
        sheets=tuple(sheets),
        left_out=f"Shown are the first {MOST} of up to {plural(most, 'images')} of an arm; the numbers below count all."
        if most > MOST
        else "",
    )


def _large(worst: Summary, pictured: Sequence[Place], blobs: Blobs) -> Large:
    title = next(title for title, _, found in pictured if found is worst)
    pairs = tuple(pairs_of(worst, blobs))
    thresholds = sorted({value for _, _, found in pictured for value in found.thresholds})
    if worst.kind == "classes":
        note = _class_note(worst, any(pair.prior for pair in pairs))
    else:
        note = _image_note(prose(f"{value:g} dB" for value in thresholds))
    attack = recipe(worst.where, [found.where for _, _, found in pictured])
    return Large(worst.kind, note, f"{title} · {attack} · {defense_name(worst.where)}", pairs)


def _image_note(threshold: str) -> str:
    limit = f"; recovered means a PSNR above {threshold}" if threshold else ""
    return (
        "Left the private image, right what the attacker rebuilt from what was sent. Images are taken in the order of "
        f"clients, never by how well they came out{limit}. Below that a picture may still be recognisable: judge for "
        "yourself."
    )


def _class_note(worst: Summary, prior: bool) -> str:
    one = one_of(worst.kind, worst.where.get("dataset"))
    beside = ", and last the prior: what the attacker believed before" if prior else ""
    return (
        f"Left the mean of the private images of one {one}, then what the attacker made from what was sent{beside}. "
        f"They are taken in the order of labels, never by how well they came out; recognised means that the picture is "
        f"more similar (SSIM) to the private images of this {one} than to those of any other, private or public."
    )
