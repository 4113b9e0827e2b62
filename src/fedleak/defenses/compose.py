"""Defenses compose: `chain(a, b)` is a defense that does a, then b."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedleak.components import component
from fedleak.defenses.base import Context, Defense, Guarantee, Plan, Stage

__all__ = ["Chain", "Identity", "chain", "identity"]


@component
class Identity:
    """No defense.

    Sees: any value at any stage.
    Needs: nothing.
    Guarantees: nothing.
    """

    paper: ClassVar[str] = ""
    revision: ClassVar[int] = 1
    stage: ClassVar[Stage | None] = "message"

    def apply(self, value: Any, context: Context, rng: torch.Generator) -> Any:
        return value

    def after(self, plan: Plan) -> Plan:
        return plan

    def guarantee(self, plan: Plan) -> Guarantee:
        return Guarantee("none", "none: no defense")


identity = Identity()


@dataclass(frozen=True)
class Chain:
    """Members in order, each at its own stage. Make it with `chain`, which flattens.

    Sees: what its members see.
    Needs: what its members need.
    Guarantees: the strongest proof of a member; what follows a proven member is post-processing, unless it looks at the
        client's own model (`uses` "previous"): that is made of private data, and what it adds is covered by no proof.
    """

    paper: ClassVar[str] = ""
    revision: ClassVar[int] = 1
    stage: ClassVar[Stage | None] = None
    members: tuple[Defense, ...] = ()

    def apply(self, value: Any, context: Context, rng: torch.Generator) -> Any:
        for member in self.members:
            if member.stage == context.stage:
                value = member.apply(value, context, rng)
        return value

    def after(self, plan: Plan) -> Plan:
        for member in self.members:
            plan = member.after(plan)
        return plan

    def guarantee(self, plan: Plan) -> Guarantee:
        for member in self.members:
            if member.stage == "protocol":  # it acts before all others, wherever it stands
                plan = member.after(plan)
        found: list[Guarantee] = []
        for member in self.members:
            if _looks_at_private_data(member):
                found = [_void(before, member) for before in found]
            found.append(member.guarantee(plan))
            plan = member.after(plan)
        proven = [g for g in found if g.kind == "dp" and g.epsilon is not None]
        if proven:
            return min(proven, key=lambda g: g.epsilon or 0.0)
        if not found:
            return identity.guarantee(plan)
        statement = "; ".join(g.statement for g in found)
        return Guarantee("empirical" if any(g.kind == "empirical" for g in found) else "none", statement)


def _looks_at_private_data(member: Defense) -> bool:
    return "previous" in getattr(member, "uses", ())


def _void(before: Guarantee, member: Defense) -> Guarantee:
    """What is left of a proof when a later member uses private data again."""
    if before.kind != "dp":
        return before
    name = type(member).__name__.lower()
    return Guarantee(
        "empirical",
        f"empirical: {name} stands behind the noise and looks at the client's own model, so it is no post-processing; "
        "put the noise last, behind a clip",
    )


def chain(*defenses: Defense) -> Chain:
    """All of these, in order. Chains inside are flattened and identities dropped, so chaining is associative."""
    members: list[Defense] = []
    for defense in defenses:
        if isinstance(defense, Chain):
            members.extend(chain(*defense.members).members)
        elif not isinstance(defense, Identity):
            members.append(defense)
    return Chain(tuple(members))
