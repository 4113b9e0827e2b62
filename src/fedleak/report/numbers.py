"""The tables of numbers: one for every kind of finding, each with the columns that mean something for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedleak.report.arms import Arm
from fedleak.report.kinds import KINDS, Kind
from fedleak.report.summaries import Summary
from fedleak.report.words import HEADINGS

__all__ = ["Numbers", "numbers_of"]

Line = tuple[Arm, tuple[Summary, ...]]

TITLES = {
    "images": "Recovered images",
    "classes": "Pictures of classes",
    "model": "Copied models",
    "counts": "Label counts",
}
COUNTED = {"images": "Images", "classes": "Classes", "model": "Test images", "counts": "Labels"}
"""What is judged one by one."""


@dataclass(frozen=True)
class Numbers:
    """One table. `title` is empty where it is the only one."""

    title: str
    counted: str
    metrics: tuple[str, ...]
    federations: tuple[tuple[str, tuple[Line, ...]], ...]


def numbers_of(federations: Sequence[tuple[str, Sequence[Arm]]]) -> list[Numbers]:
    """Attacks of which nothing was judged stand with what the same attack found elsewhere, else with the images."""
    every = [found for _, arms in federations for arm in arms for found in arm.attacks]
    known: dict[str, Kind] = {str(found.where.get("attack")): found.kind for found in every if found.scores}

    def kind_of(found: Summary) -> Kind:
        return found.kind if found.scores else known.get(str(found.where.get("attack")), "images")

    present = [kind for kind in KINDS if any(kind_of(found) == kind for found in every)]
    tables = []
    for kind in present:
        parts = []
        for title, arms in federations:
            chosen = ((arm, tuple(found for found in arm.attacks if kind_of(found) == kind)) for arm in arms)
            if lines := tuple((arm, attacks) for arm, attacks in chosen if attacks):
                parts.append((title, lines))
        scores = {metric for found in every if kind_of(found) == kind for metric in found.scores}
        metrics = [metric for metric in HEADINGS if metric in scores]
        title = TITLES[kind] if present != ["images"] else ""
        tables.append(Numbers(title, COUNTED[kind], (*metrics, *sorted(scores - set(metrics))), tuple(parts)))
    return tables
