"""Cosine: the angle between gradients (Geiping et al. 2020, Inverting Gradients; a baseline of dlm.txt)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat

from fedleak.attacks.inversion.distances import UnitDifference
from fedleak.attacks.inversion.engine import invert
from fedleak.attacks.inversion.settings import BATCH, ONE_START, PAPER, PAPER_MLP, TORCH_TOLERANCES, InversionSettings
from fedleak.attacks.knowledge import require
from fedleak.components import component
from fedleak.types import Gradients, Progress, Reconstruction, Transcript, Weights, silent

__all__ = ["Cosine"]

GEIPING: Mapping[str, Any] = {
    **PAPER,
    "optimizer": "adam",
    "lr": 0.1,
    "signed": True,
    "decay": (3 / 8, 5 / 8, 7 / 8),
    "steps": 4800,
    "tv": 1e-4,
    "tv_norm": "absolute",
    "clamp": True,
    "labels": "llg",
    "factor": 1.0,
}
"""Inverting Gradients as its authors run it: Adam on signs, three falls of the step length, pixels kept in range."""


@component
class Cosine(InversionSettings):
    """Match the angle: 1 - cosine between the dummies' gradient and the client's, with `tv` for smooth pictures.

    Over all parameters it is half of DLM+'s objective (eq. 8), so the two cannot differ by their objective: the presets
    of DLM's paper keep the objective without a factor and torch's tolerances, which stop it at 20 to 30 dB. "geiping"
    is the attack of its authors, who take labels as known; here they are read off the update.

    Sees: the broadcast weights and what each client sent back, the network and its loss.
    Needs: the number of images behind a message; no learning rate, no number of local steps.
    Guarantees: nothing is read but the transcript; of several starts the one with the smallest objective counts.
    """

    paper: ClassVar[str] = (
        "Geiping et al. 2020, Inverting Gradients; Deep Leakage from Model in Federated Learning, table 1"
    )
    reads: ClassVar[tuple[type, ...]] = (Gradients, Weights)
    needs: ClassVar[frozenset[str]] = frozenset({"samples"})
    needs_from_weights: ClassVar[frozenset[str]] = frozenset()
    yields: ClassVar[type] = Reconstruction
    revision: ClassVar[int] = 2
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "strong": {},
        "paper": {**PAPER, **TORCH_TOLERANCES, "factor": 1.0},
        "paper_mlp": {**PAPER_MLP, "factor": 1.0},
        "one_start": {**ONE_START, "factor": 1.0},
        "batch": BATCH,
        "geiping": GEIPING,
    }
    preset: Literal["strong", "paper", "paper_mlp", "one_start", "batch", "geiping"] = "strong"

    factor: PositiveFloat = Field(default=1000.0, description="what the objective is multiplied by")

    def __call__(self, seen: Transcript, *, rng: torch.Generator, progress: Progress = silent) -> Reconstruction:
        require(self, seen)
        distance = UnitDifference(factor=self.factor / 2)  # computed as a difference: 1 - cosine has a floor near 1e-7
        return invert(seen, self.make_recipe(distance, self.factor), rng=rng, progress=progress)
