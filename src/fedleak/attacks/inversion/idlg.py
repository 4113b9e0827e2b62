"""iDLG: the label read off the last layer, then the gradient matched with it (Zhao et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field

from fedleak.attacks.inversion.distances import SquaredL2
from fedleak.attacks.inversion.dlg import gradient_scale
from fedleak.attacks.inversion.engine import invert
from fedleak.attacks.inversion.labels import LabelRule
from fedleak.attacks.inversion.settings import ONE_START, PAPER, PAPER_MLP, TORCH_TOLERANCES, InversionSettings, Preset
from fedleak.attacks.knowledge import require
from fedleak.components import component
from fedleak.types import Gradients, Progress, Reconstruction, Transcript, Weights, silent

__all__ = ["IDLG"]


@component
class IDLG(InversionSettings):
    """DLG with the label fixed from the start: the only class whose gradient in the last layer is negative.

    The rule reads one image per message; for more, `labels` "yin" or "llg".

    Sees: the broadcast weights and what each client sent back, the network and its loss.
    Needs: the number of images behind a message; from weights also the learning rate and the number of local steps
    (epochs and batch size), since a difference of weights is only then a gradient.
    Guarantees: nothing is read but the transcript; of several starts the one with the smallest objective counts.
    """

    paper: ClassVar[str] = "Zhao et al. 2020, iDLG: Improved Deep Leakage from Gradients"
    reads: ClassVar[tuple[type, ...]] = (Gradients, Weights)
    needs: ClassVar[frozenset[str]] = frozenset({"samples"})
    needs_from_weights: ClassVar[frozenset[str]] = frozenset({"lr", "epochs", "batch_size"})
    yields: ClassVar[type] = Reconstruction
    revision: ClassVar[int] = 2
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "strong": {},
        "paper": {**PAPER, **TORCH_TOLERANCES},
        "paper_mlp": PAPER_MLP,
        "one_start": ONE_START,
    }

    preset: Preset = "strong"
    labels: LabelRule = Field(default="idlg", description="how labels are read off the last layer")

    def __call__(self, seen: Transcript, *, rng: torch.Generator, progress: Progress = silent) -> Reconstruction:
        require(self, seen)
        return invert(seen, self.make_recipe(SquaredL2(), scale=gradient_scale), rng=rng, progress=progress)
