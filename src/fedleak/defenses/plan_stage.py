"""Defenses that change the plan of a federation before it begins: fewer rounds, other public data."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch

from fedleak.components import component
from fedleak.defenses.base import Context, Plan, ProtocolPlan, Stage
from fedleak.defenses.empirical import Empirical
from fedleak.errors import RefusedError
from fedleak.types import PublicSet

__all__ = ["CrossDomain", "OneShot"]


@component
class OneShot(Empirical):
    """Clients send their predictions once: the federation has one round.

    Sees: the plan of the federation.
    Needs: nothing.
    Guarantees: nothing proven by itself; noise is released once instead of once a round.
    """

    paper: ClassVar[str] = (
        "Quantifying and Defending against the Privacy Risk in Logit-based Federated Learning, "
        "appendix E.2; Li et al. 2020"
    )
    revision: ClassVar[int] = 1
    stage: ClassVar[Stage | None] = "protocol"
    why: ClassVar[str] = "a single release hides nothing for certain"

    def apply(self, value: ProtocolPlan, context: Context, rng: torch.Generator) -> ProtocolPlan:
        return replace(value, rounds=1)

    def after(self, plan: Plan) -> Plan:
        return replace(plan, rounds=1)


@component
class CrossDomain(Empirical):
    """Drops the public examples of the private domain (alpha = 0): clients predict on foreign images only.

    Sees: the plan of the federation and its public set.
    Needs: a public set that says which of its images are of the private domain (`domains`).
    Guarantees: nothing proven; what attacks measure.
    """

    paper: ClassVar[str] = (
        "Quantifying and Defending against the Privacy Risk in Logit-based Federated Learning, "
        "appendix E.2; Lin et al. 2020"
    )
    revision: ClassVar[int] = 1
    stage: ClassVar[Stage | None] = "protocol"
    uses: ClassVar[tuple[str, ...]] = ("public",)
    why: ClassVar[str] = "predictions on foreign images are still predictions of the private model"

    def apply(self, value: ProtocolPlan, context: Context, rng: torch.Generator) -> ProtocolPlan:
        public = value.public
        if public is None:
            raise RefusedError("cross_domain: the federation has no public set; use a protocol that sends predictions")
        if public.domains is None:
            raise RefusedError(
                f"cross_domain: the public set does not say which of its {len(public)} images are of the private "
                "domain (domains=None), so none can be dropped; mix it from two data sets, or leave this defense out"
            )
        foreign = public.domains != 0
        if not bool(foreign.any()):
            raise RefusedError(
                f"cross_domain: all {len(public)} public images are of the private domain, so none would be left; "
                "add images of another domain (alpha below 1)"
            )
        return replace(value, public=_kept(public, foreign))

    def after(self, plan: Plan) -> Plan:
        return plan


def _kept(public: PublicSet, chosen: torch.Tensor) -> PublicSet:
    labels = None if public.labels is None else public.labels[chosen]
    domains = None if public.domains is None else public.domains[chosen]
    return PublicSet(public.inputs[chosen], labels, domains)
