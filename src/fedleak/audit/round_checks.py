"""Whether the round that an attack asks for is one that some federation of a specification records."""

from __future__ import annotations

from collections.abc import Sequence

from fedleak.audit.checks import Findings
from fedleak.audit.points import Point
from fedleak.defenses import Plan, chain

__all__ = ["check_rounds"]


def check_rounds(points: Sequence[Point], found: Findings) -> None:
    """Notes a round that no arm at any point of a sweep has: all rows would be refused, once the federations are
    simulated. Where some have it, the rows of the others say why they do not."""
    held: dict[tuple[int, int], int] = {}
    for point in points:
        # A protocol of somebody else's need not say; then nothing is known about it.
        if not point.arms or (recorded := getattr(point.protocol, "recorded_rounds", None)) is None:
            return
        plan = Plan(rounds=recorded())
        most = max(chain(*arm.defenses).after(plan).rounds for arm in point.arms)
        for choice in point.attacks:
            asked = getattr(choice.attack, "round", None)
            if isinstance(asked, int):
                held[choice.entry, asked] = max(held.get((choice.entry, asked), 0), most)
    for (entry, asked), most in held.items():
        if abs(asked) > most:
            found.add(
                f"attacks.{entry}.round",
                f"{asked}: the transcript holds rounds 1 to {most}; ask for one of these, or raise protocol.rounds "
                "(and what of them is recorded: protocol.record, protocol.attacked_round)",
            )
