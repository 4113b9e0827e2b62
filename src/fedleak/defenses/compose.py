"""Defenses compose: `chain(a, b)` is a defense that does a, then b."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, get_args

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
    Guarantees: the strongest proof of a member; what acts behind a proven member is post-processing, with two
        exceptions that leave no proof: it looks at the client's own model (`uses` "previous"), which is made of private
        data; or both act on the gradients of single examples, of which only the sum has the noise.
    """

    paper: ClassVar[str] = ""
    revision: ClassVar[int] = 1
    stage: ClassVar[Stage | None] = None
    members: tuple[Defense, ...] = ()

    def apply(self, value: Any, context: Context, rng: torch.Generator) -> Any:
        for member in self.members:
            if member.stage in (context.stage, None):  # a composite's own members decide
                value = member.apply(value, context, rng)
        return value

    def after(self, plan: Plan) -> Plan:
        for member in self.members:
            plan = member.after(plan)
        return plan

    def guarantee(self, plan: Plan) -> Guarantee:
        found: list[tuple[Defense, Guarantee]] = []
        for member in sorted(chain(self).members, key=_when):  # a chain inside would hide what its members look at
            found = [(before, _left(before, what, member)) for before, what in found]
            found.append((member, member.guarantee(plan)))
            plan = member.after(plan)
        proven = [what for _, what in found if what.kind == "dp" and what.epsilon is not None]
        if proven:
            return min(proven, key=lambda g: g.epsilon or 0.0)
        if not found:
            return identity.guarantee(plan)
        statement = "; ".join(what.statement for _, what in found)
        return Guarantee("empirical" if any(what.kind == "empirical" for _, what in found) else "none", statement)


def _when(member: Defense) -> int:
    """Stage comes before place: what changes the plan, the examples or the gradients acts before any message is."""
    return get_args(Stage).index(member.stage or "message")


def _left(before: Defense, proof: Guarantee, member: Defense) -> Guarantee:
    """What is left of a proof behind which another member acts: all of it, unless that is no post-processing."""
    if proof.kind != "dp":
        return proof
    name = type(member).__name__.lower()
    if "previous" in getattr(member, "uses", ()):
        why = "looks at the client's own model, so it is no post-processing; put the noise last, behind a clip"
    elif before.stage == member.stage == "gradients":
        why = "acts on each example's gradient, where only their sum has the noise; put dp_sgd behind it"
    else:
        return proof
    return Guarantee("empirical", f"empirical: {name} stands behind the noise and {why}")


def chain(*defenses: Defense) -> Chain:
    """All of these, in order. Chains inside are flattened and identities dropped, so chaining is associative."""
    members: list[Defense] = []
    for defense in defenses:
        if isinstance(defense, Chain):
            members.extend(chain(*defense.members).members)
        elif not isinstance(defense, Identity):
            members.append(defense)
    return Chain(tuple(members))
