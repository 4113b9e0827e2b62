"""What a client does before it sends, each with its stage, its context and what it proves."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

from fedleak.defenses.base import Context, Defense, Guarantee, Plan, ProtocolPlan, Stage
from fedleak.defenses.clip import Clip
from fedleak.defenses.compose import Chain, Identity, chain, identity
from fedleak.defenses.directed import Directed
from fedleak.defenses.dp_sgd import DPSGD
from fedleak.defenses.empirical import epsilon_of
from fedleak.defenses.noise import Gaussian, Laplace
from fedleak.defenses.plan_stage import CrossDomain, OneShot
from fedleak.defenses.predictions import LabelOnly, Round, Temperature, TopK
from fedleak.defenses.prune import Prune
from fedleak.defenses.sparsify import Sparsify

__all__ = [
    "DEFENSES",
    "DPSGD",
    "Chain",
    "Clip",
    "Context",
    "CrossDomain",
    "Defense",
    "Directed",
    "Gaussian",
    "Guarantee",
    "Identity",
    "LabelOnly",
    "Laplace",
    "OneShot",
    "Plan",
    "ProtocolPlan",
    "Prune",
    "Round",
    "Sparsify",
    "Stage",
    "Temperature",
    "TopK",
    "chain",
    "epsilon_of",
    "identity",
    "label",
]

DEFENSES: dict[str, type] = {
    "identity": Identity,
    "gaussian": Gaussian,
    "laplace": Laplace,
    "clip": Clip,
    "sparsify": Sparsify,
    "prune": Prune,
    "dp_sgd": DPSGD,
    "round": Round,
    "top_k": TopK,
    "temperature": Temperature,
    "label_only": LabelOnly,
    "directed": Directed,
    "one_shot": OneShot,
    "cross_domain": CrossDomain,
}


def label(defense: Defense) -> str:
    """A short name for tables: fields at their defaults are left out.

    >>> label(chain(Clip(norm=1), Gaussian(sigma=0.01)))
    'clip(norm=1)+gaussian(sigma=0.01)'
    >>> label(identity)
    'none'
    """
    if isinstance(defense, Chain):
        return "+".join(map(label, defense.members)) or "none"
    if isinstance(defense, Identity):
        return "none"
    kind = type(defense)
    name = next((name for name, known in DEFENSES.items() if known is kind), kind.__name__)
    shown = []
    for field in dataclasses.fields(cast(Any, defense)):
        value = getattr(defense, field.name)
        default = getattr(field.default, "default", field.default)
        if value != default:
            shown.append(f"{field.name}={value:g}" if isinstance(value, float) else f"{field.name}={value}")
    return f"{name}({', '.join(shown)})" if shown else name
