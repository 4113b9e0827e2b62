"""The run at a glance: federations and kinds of findings by defenses, with what the strongest attack got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedleak.report.arms import Arm
from fedleak.report.charts import kind_title
from fedleak.report.kinds import KINDS, Kind
from fedleak.report.levels import Level, level_of, resembling
from fedleak.report.sentences import amount
from fedleak.report.words import percent

__all__ = ["Cell", "Glance", "glance_of"]


@dataclass(frozen=True)
class Cell:
    level: Level
    count: str
    attack: str


@dataclass(frozen=True)
class Glance:
    """A cell is None where that arm was not run."""

    title: str
    defenses: tuple[str, ...]
    lines: tuple[tuple[str, tuple[Cell | None, ...]], ...]


def glance_of(federations: Sequence[tuple[str, Sequence[Arm]]]) -> Glance | None:
    """Not worth a table for one arm and one kind."""
    names = {arm.number: arm.title for _, arms in federations for arm in arms}
    present = {kind for _, arms in federations for arm in arms for kind in arm.kinds}
    lines = []
    for title, arms in federations:
        mine: list[Kind] = [kind for kind in KINDS if any(kind in arm.kinds for arm in arms)] or ["images"]
        for kind in mine:
            name = title if present <= {"images"} else f"{title} · {kind_title(kind, arms)}"
            lines.append((name, tuple(_cell(arms, number, kind) for number in sorted(names))))
    if sum(cell is not None for _, cells in lines for cell in cells) < 2:
        return None
    what = "Images recovered by the" if present <= {"images"} else "What was got by the"
    return Glance(
        title=f"{what} strongest attack that was run on each arm",
        defenses=tuple(names[number] for number in sorted(names)),
        lines=tuple(lines),
    )


def _cell(arms: Sequence[Arm], number: int, kind: Kind) -> Cell | None:
    arm = next((arm for arm in arms if arm.number == number), None)
    if arm is None:
        return None
    found = arm.strongest_of(kind)
    if found is None:
        return Cell("unknown", "not judged", "")
    attack, victim = str(found.where.get("attack")), found.scores.get("victim_accuracy")
    count = amount(found)
    if kind == "model":
        return Cell(level_of(found), count, f"{attack}{f', victim {percent(victim.mean)}' if victim else ''}")
    if not found.hits and kind == "images" and (like := resembling(arm.attacks)) is not None:
        ssim, guess = like.scores["ssim"].mean, like.nulls["ssim"].mean
        return Cell(level_of(found), count, f"SSIM {ssim:.2f}, a guess {guess:.2f}")
    return Cell(level_of(found), count, attack if found.hits else "")
