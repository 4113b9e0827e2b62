"""One attack on predictions, as data: what tbi, ptbi and pli hand to the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fedleak.attacks.logits.inputs import Q, Rows
from fedleak.attacks.logits.material import Feed
from fedleak.attacks.logits.priors import PriorRecipe
from fedleak.attacks.logits.selection import Rule
from fedleak.attacks.logits.training import Norm
from fedleak.learning.precision import Precision

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """One attack. `feed` says what a network learns from; `q`, `alpha` and `rows` what it is asked with."""

    feed: Feed
    q: Q
    tau: float
    epochs: int
    lr: float
    weight_decay: float
    batch_size: int
    width: float
    distance: Norm
    precision: Precision = "tf32"
    restarts: int = 0
    round: int = -1
    snapshots: int = 0
    alpha: float = 5.0
    beta: float = 0.1
    choice: Rule = "sum"
    gamma: float = 0.0
    rows: Rows = "label"
    norm_after_first: Literal["train", "eval"] = "train"
    renormalise: bool = False
    prior: PriorRecipe = field(default_factory=PriorRecipe)
