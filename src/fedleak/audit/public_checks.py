"""Whether the public set of a specification, and what is said of it, is what its protocol and attacks can work with.

Only what the tables say is looked at: an audit must not find out after the federations were simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedleak.audit.checks import Findings
from fedleak.audit.points import Arm
from fedleak.defenses import Clip, CrossDomain, Plan, chain
from fedleak.federation.logits.settings import LogitSettings
from fedleak.types import Predictions

__all__ = ["check_dropped", "check_history", "check_public", "check_sums"]


def check_public(
    data: Any, protocol_name: str, protocol: Any, attacks: Sequence[tuple[str, Any]], found: Findings
) -> None:
    """Notes a missing public set, missing labels, and attacks or priors that have nothing to learn from."""
    if protocol.sends is not Predictions:
        return
    public = data.public
    if public is None:
        found.add(
            "data.public",
            f"is required: the clients of {protocol_name} predict on public examples; add a table [data.public] "
            "with `targets` (people of the same data set) or `name` (another data set)",
        )
        return
    # A protocol of somebody else's need not say.
    if getattr(protocol, "uses_public_labels", False) and not public.labelled:
        found.add(
            "data.public.labels",
            f"false, but {protocol_name} trains on the labels of the public set; label it, use dsfl, or fedmd with "
            "public_labels = false",
        )
    for name, attack in attacks:
        if getattr(attack, "learns_from_clean", False) and not (public.of_people or public.alpha):
            found.add(
                "attacks",
                f"{name!r} learns what a private picture looks like from public ones of the private domain (D_0), but "
                f"all of the public set {public.name!r} are of another; mix some in (data.public.alpha above 0), share "
                "pictures of other people of the same data set (data.public.targets), or leave the attack out",
            )
        elif (
            getattr(attack, "translates", False)
            and public.labelled
            and (reason := _nothing_to_translate(public, attack))
        ):
            found.add("attacks", f"{name!r} with prior = {attack.prior!r}: {reason}")


def check_dropped(data: Any, protocol: Any, arms: Sequence[Arm], found: Findings) -> None:
    """Notes a defense that drops the images of the private domain where the public set has no others."""
    if protocol.sends is not Predictions or data.public is None or data.public.alpha != 1:
        return
    if any(isinstance(defense, CrossDomain) for arm in arms for defense in arm.defenses):
        found.add(
            "data.public.alpha",
            "1.0: all public images are of the private domain, so 'cross_domain' would leave none; choose a smaller "
            "alpha, or leave cross_domain out",
        )


def check_history(
    data: Any, protocol: Any, arms: Sequence[Arm], attacks: Sequence[tuple[str, Any]], found: Findings
) -> None:
    """Notes an attack that averages predictions over rounds where every round draws other public examples."""
    if not isinstance(protocol, LogitSettings) or protocol.alignment is None or data.public is None:
        return
    if data.public.examples is not None and protocol.alignment >= data.public.examples:
        return
    plan = Plan(rounds=protocol.recorded_rounds())
    rounds = max((chain(*arm.defenses).after(plan).rounds for arm in arms), default=0)
    for name, attack in attacks:
        reach: int = getattr(attack, "T0", 0)
        if reach == 0:
            continue
        # Round 1 has no history, and one_shot leaves no other round.
        last = attack.round if attack.round > 0 else rounds + 1 + attack.round
        if min(last, rounds) > 1:
            found.add(
                "protocol.alignment",
                f"{protocol.alignment}: predictions are on other public examples in every round, but {name!r} averages "
                f"up to {reach + 1} rounds; leave alignment out, or take msa (T0 = 0), which needs no history",
            )


def check_sums(protocol: Any, arms: Sequence[Arm], attacks: Sequence[tuple[str, Any]], found: Findings) -> None:
    """Notes an attack that takes logarithms of probabilities where a defense leaves none: numbers with another sum."""
    if getattr(protocol, "uploads", None) != "probabilities":
        return
    left = [arm.label for arm in arms if _leaves_scores(arm)]
    for name, attack in attacks if left else ():
        if getattr(attack, "renormalise", True) is False:
            found.add(
                "attacks",
                f"{name!r} reads probabilities, and under {', '.join(left)} what is sent no longer sums to one; say "
                "renormalise = true for this attack (it cuts below 0 and divides by the sum), or send logits "
                "(protocol.uploads)",
            )


def _leaves_scores(arm: Arm) -> bool:
    scores = False
    for member in chain(*arm.defenses).members:
        if getattr(member, "normalises", False):
            scores = False
        elif isinstance(member, Clip) or member.after(Plan(predictions="probabilities")).predictions == "unbounded":
            scores = True
    return scores


def _nothing_to_translate(public: Any, attack: Any) -> str:
    if not public.of_people:
        return (
            f"the public set {public.name!r} shows nobody in both domains, so there is nothing to learn a prior from; "
            "use prior = 'mean', or gamma = 0 for no prior"
        )
    if public.domain == "blur" and public.variant != "released" and attack.prior_blur is None:
        return (
            "with domain = 'blur' of variant 'paper' only targets are blurred, so there are no pairs to learn from; "
            f"say prior_blur = {public.box} (blurred copies of clean public pictures make pairs), prior = 'mean', or "
            "data.public.variant = 'released'"
        )
    return ""
