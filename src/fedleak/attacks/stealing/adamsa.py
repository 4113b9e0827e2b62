"""AdaMSA: imitate a client by a weighted mean of its latest predictions (adamsa.txt, section 3.2, algorithm 1)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat

from fedleak.attacks.stealing.settings import StealingSettings
from fedleak.attacks.stealing.targets import Importance
from fedleak.attacks.stealing.theft import steal
from fedleak.components import component
from fedleak.types import Predictions, Progress, StolenModels, Transcript, silent

__all__ = ["AdaMSA"]


@component
class AdaMSA(StealingSettings):
    """MSA whose target is the sum over the rounds t from max(1, T - T0) to T of w0 (t / T) p_t.

    With T0 = 0, or where there is a single round, it is MSA up to the scale of the loss. So is `weights` "literal" to
    "normalised": the weights of the paper do not sum to one, which multiplies the loss and hardly moves Adam.

    Sees: the predictions of every client in every round up to `round`, and the public set.
    Needs: nothing; predictions on the same public examples within the T0 + 1 rounds that are averaged.
    Guarantees: nothing is read but the transcript. A victim's result does not depend on which others are attacked.
    """

    paper: ClassVar[str] = (
        "Quantifying and Defending against the Privacy Risk in Logit-based Federated Learning, section 3.2, algorithm 1"
    )
    reads: ClassVar[tuple[type, ...]] = (Predictions,)
    needs: ClassVar[frozenset[str]] = frozenset()
    needs_from_weights: ClassVar[frozenset[str]] = frozenset()
    yields: ClassVar[type] = StolenModels
    revision: ClassVar[int] = 5

    T0: NonNegativeInt = Field(default=3, description="how many rounds before the current one are averaged with it")
    w0: PositiveFloat = Field(default=0.5, description="weight of the current round; matters for 'literal' only")
    weights: Importance = Field(default="normalised", description="divide the weights by their sum, or take them as is")

    def __call__(self, seen: Transcript, *, rng: torch.Generator, progress: Progress = silent) -> StolenModels:
        found = steal(seen, self, reach=self.T0, first_weight=self.w0, rule=self.weights, rng=rng, progress=progress)
        if self.T0 > 0 and found.notes.get("rounds") == 1:
            said = "a single round holds no history: AdaMSA is MSA here, up to the scale of the loss"
            return replace(found, notes={**found.notes, "history": said})
        return found
