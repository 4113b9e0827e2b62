"""TBI: training-based inversion of clients' predictions alone (Yang et al. 2019; the baseline of pli.txt)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from fedleak.attacks.logits.engine import invert
from fedleak.attacks.logits.recipe import Recipe
from fedleak.attacks.logits.settings import LogitSettings
from fedleak.components import component
from fedleak.types import ClassReconstruction, Predictions, Progress, Transcript, silent

__all__ = ["TBI"]


@component
class TBI(LogitSettings):
    """One inversion network learns from the predictions of all clients on all public pictures, and is asked with
    one-hot predictions.

    Sees: the public set, and what each client uploaded in every round.
    Needs: the target labels.
    Guarantees: nothing is read but the transcript, and no gradient. One picture for every target label; none is
    anybody's in particular, so there are no candidates. The prior of the finding is the mean of D_0, for comparison.
    """

    paper: ClassVar[str] = (
        "Yang et al. 2019, Neural Network Inversion in Adversarial Setting; "
        "Takahashi et al. 2023, Breaching FedMD, table 2"
    )
    reads: ClassVar[tuple[type, ...]] = (Predictions,)
    needs: ClassVar[frozenset[str]] = frozenset({"target_labels"})
    needs_from_weights: ClassVar[frozenset[str]] = frozenset()
    yields: ClassVar[type] = ClassReconstruction
    revision: ClassVar[int] = 2
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        # Two slips of the released code: only the last client is seen, and BatchNorm stays in eval mode after round 1.
        "released": {"clients": "last", "norm_after_first": "eval"},
    }

    preset: Literal["paper", "released"] = "paper"
    clients: Literal["all", "last"] = Field(default="all", description="whose predictions are learnt from")
    norm_after_first: Literal["train", "eval"] = Field(
        default="train", description="mode of BatchNorm while training after the first round"
    )

    def __call__(self, seen: Transcript, *, rng: torch.Generator, progress: Progress = silent) -> ClassReconstruction:
        recipe = Recipe(
            feed="pooled" if self.clients == "all" else "last",
            q="client",
            norm_after_first=self.norm_after_first,
            **self.shared(),
        )
        return invert(self, seen, recipe, rng=rng, progress=progress)
