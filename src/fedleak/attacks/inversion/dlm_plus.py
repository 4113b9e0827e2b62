"""DLM+: private images from two sets of weights, without the learning rate (dlm.txt, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat

from fedleak.attacks.inversion.distances import UnitDifference
from fedleak.attacks.inversion.engine import invert
from fedleak.attacks.inversion.settings import BATCH, PAPER, PAPER_MLP, InversionSettings
from fedleak.attacks.knowledge import require
from fedleak.components import component
from fedleak.types import Gradients, Progress, Reconstruction, Transcript, Weights, silent

__all__ = ["DLMPlus"]

FLOAT_FLOOR = 1e-10
"""About where float32 ends for this objective (80 dB): going on to the paper's last iteration changes nothing."""


@component
class DLMPlus(InversionSettings):
    """Match the direction of the update: both sides divided by their norm (eq. 8), so that the scale drops out.

    The text leaves the scope of the norm open; over all parameters the objective equals 2 (1 - cosine). torch's
    absolute tolerances end L-BFGS on this objective, which is of order 1, at 20 to 30 dB. They are 0 in every preset,
    and so is the one for the curvature in "paper", which takes eq. 8 as it is. The other presets multiply the objective
    by `factor` instead. With L-BFGS and no bound on its steps that would do harm: where the curvature is negative, as
    it often is at the start, there is nothing but the slope to go by, and a step is as long as the slope.
    For several images a term for their total variation helps (`tv`, eq. 14); its weight stands beside the objective
    without the factor.

    Sees: the broadcast weights and what each client sent back in that round or in round `until`, the network and
    its loss.
    Needs: the number of images behind a message; no learning rate, no number of local steps.
    Guarantees: nothing is read but the transcript; of several starts the one with the smallest objective counts.
    """

    paper: ClassVar[str] = "Deep Leakage from Model in Federated Learning, eq. 8"
    reads: ClassVar[tuple[type, ...]] = (Gradients, Weights)
    needs: ClassVar[frozenset[str]] = frozenset({"samples"})
    needs_from_weights: ClassVar[frozenset[str]] = frozenset()
    yields: ClassVar[type] = Reconstruction
    revision: ClassVar[int] = 2
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "strong": {},
        "paper": {**PAPER, "goal": FLOAT_FLOOR, "factor": 1.0, "tolerance_curvature": 0.0},
        "paper_mlp": {**PAPER_MLP, "goal": FLOAT_FLOOR},
        "batch": BATCH,
    }
    preset: Literal["strong", "paper", "paper_mlp", "batch"] = "strong"

    norm: Literal["global", "layer"] = Field(
        default="global", description="norm over all parameters, or tensor by tensor"
    )
    factor: PositiveFloat = Field(default=1000.0, description="what the objective is multiplied by")

    until: int | None = Field(default=None, description="what was sent in this later round; none: in the same round")

    def __call__(self, seen: Transcript, *, rng: torch.Generator, progress: Progress = silent) -> Reconstruction:
        require(self, seen)
        distance = UnitDifference(factor=self.factor, per_layer=self.norm == "layer")
        return invert(seen, self.make_recipe(distance, self.factor, until=self.until), rng=rng, progress=progress)
