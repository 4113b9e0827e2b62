"""PTBI: paired-logits inversion without a prior (ptbi_supplement.txt): what pli is at gamma = 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat

from fedleak.attacks.logits.engine import invert
from fedleak.attacks.logits.inputs import Q, Rows
from fedleak.attacks.logits.pli import FEEDS
from fedleak.attacks.logits.recipe import Recipe
from fedleak.attacks.logits.selection import Rule
from fedleak.attacks.logits.settings import LogitSettings
from fedleak.components import component
from fedleak.types import ClassReconstruction, Predictions, Progress, Transcript, silent

__all__ = ["PTBI"]


@component
class PTBI(LogitSettings):
    """One inversion network for each client on pairs of server's and client's predictions, asked with eq. 6; no prior.

    Sees: the public set, and of every round what each client uploaded and the server's own predictions. Where those
    are not recorded it trains a model of its own on the public set.
    Needs: the target labels.
    Guarantees: nothing is read but the transcript, and no gradient. One picture for every target label. The prior of
    the finding is the mean of D_0, for comparison only.
    """

    paper: ClassVar[str] = "Takahashi et al., Reconstruct Private Data via Public Knowledge in Distillation-based FL"
    reads: ClassVar[tuple[type, ...]] = (Predictions,)
    needs: ClassVar[frozenset[str]] = frozenset({"target_labels"})
    needs_from_weights: ClassVar[frozenset[str]] = frozenset()
    yields: ClassVar[type] = ClassReconstruction
    revision: ClassVar[int] = 5
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "released": {"rows": "batch", "choice": "mean"},
    }

    preset: Literal["paper", "released"] = "paper"
    alpha: PositiveFloat = Field(default=5.0, description="weight of the server's entropy in Q")
    beta: NonNegativeFloat = Field(default=0.1, description="weight of the total variation when a client is picked")
    choice: Rule = Field(
        default="sum", description="how the clients' pictures compare: sum, eq. 11 as printed; mean, as released"
    )
    q: Q = Field(default="full", description="the terms of Q, eq. 4, that the optimal inputs maximise")
    rows: Rows = Field(default="label", description="server's optimal input: for its label; batch: as released")

    def __call__(self, seen: Transcript, *, rng: torch.Generator, progress: Progress = silent) -> ClassReconstruction:
        feed = FEEDS.get(self.q, "paired")
        recipe = Recipe(
            feed=feed,
            q=self.q,
            alpha=self.alpha,
            beta=self.beta,
            choice=self.choice,
            rows=self.rows,
            **self.shared(),
        )
        return invert(self, seen, recipe, rng=rng, progress=progress)
