"""Whether the round that an attack asks for is one that some federation of a specification records, and can judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedleak.audit.checks import Findings
from fedleak.audit.points import Arm, Point
from fedleak.defenses import Plan, chain
from fedleak.federation.logits.settings import LogitSettings
from fedleak.types import StolenModels

__all__ = ["check_rounds"]

Asked = dict[tuple[int, int], set[int]]
"""The number of an attack and the round it asks for, to rounds."""


def check_rounds(points: Sequence[Point], found: Findings) -> None:
    """Notes a round that no arm at any point of a sweep has, or that is not tested anywhere: all rows would be refused,
    once the federations are simulated. Where some have it, the rows of the others say why they do not."""
    held: dict[tuple[int, int], int] = {}
    judged: Asked = {}
    tested: Asked = {}
    for point in points:
        # A protocol of somebody else's need not say; then nothing is known about it.
        if not point.arms or (recorded := getattr(point.protocol, "recorded_rounds", None)) is None:
            return
        lengths = [chain(*arm.defenses).after(Plan(rounds=recorded())).rounds for arm in point.arms]
        for choice in point.attacks:
            asked = getattr(choice.attack, "round", None)
            if not isinstance(asked, int):
                continue
            key = choice.entry, asked
            held[key] = max(held.get(key, 0), *lengths)
            if getattr(choice.attack, "yields", None) is StolenModels and isinstance(point.protocol, LogitSettings):
                for length, arm in zip(lengths, point.arms, strict=True):
                    known = set(_left(point.protocol, arm).predicted_rounds())
                    tested.setdefault(key, set()).update(known)
                    judged.setdefault(key, set()).update(known & {asked if asked > 0 else length + 1 + asked})
    for (entry, asked), most in held.items():
        if abs(asked) > most:
            found.add(
                f"attacks.{entry}.round",
                f"{asked}: the transcript holds rounds 1 to {most}; ask for one of these, or raise protocol.rounds "
                "(and what of them is recorded: protocol.record, protocol.attacked_round)",
            )
        elif not judged.get((entry, asked), {asked}):
            found.add(
                f"attacks.{entry}.round",
                f"{asked}: a copy is judged by what its victim says of the test images in that round, and clients are "
                f"tested in {', '.join(map(str, sorted(tested[entry, asked])))} only; ask for one of these, or say "
                "protocol.evaluate_every = 1",
            )


def _left(protocol: LogitSettings, arm: Arm) -> LogitSettings:
    """The protocol with as many rounds as the defenses of an arm leave, as the federation has it."""
    rounds, attacked = chain(*arm.defenses).after(Plan(rounds=protocol.rounds)).rounds, protocol.attacked_round
    return replace(protocol, rounds=rounds, attacked_round=None if attacked is None else min(attacked, rounds))
