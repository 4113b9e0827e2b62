"""MSA: imitate a client by its predictions of the current round (adamsa.txt, section 5.1)."""

from __future__ import annotations

from typing import ClassVar

import torch

from fedleak.attacks.stealing.settings import StealingSettings
from fedleak.attacks.stealing.theft import steal
from fedleak.components import component
from fedleak.types import Predictions, Progress, StolenModels, Transcript, silent

__all__ = ["MSA"]


@component
class MSA(StealingSettings):
    """In every round, train an imitation of each client on what it predicts for the public examples.

    The paper reports the best round on the private test set, which no attacker can choose by; this is the final one.

    Sees: the predictions of every client in every round up to `round`, and the public set.
    Needs: nothing; neither the clients' network nor the labels of the public set.
    Guarantees: nothing is read but the transcript. A victim's result does not depend on which others are attacked.
    """

    paper: ClassVar[str] = (
        "Tramer et al. 2016, as the baseline of "
        "Quantifying and Defending against the Privacy Risk in Logit-based Federated Learning"
    )
    reads: ClassVar[tuple[type, ...]] = (Predictions,)
    needs: ClassVar[frozenset[str]] = frozenset()
    needs_from_weights: ClassVar[frozenset[str]] = frozenset()
    yields: ClassVar[type] = StolenModels
    revision: ClassVar[int] = 5

    def __call__(self, seen: Transcript, *, rng: torch.Generator, progress: Progress = silent) -> StolenModels:
        return steal(seen, self, reach=0, first_weight=1.0, rule="normalised", rng=rng, progress=progress)
