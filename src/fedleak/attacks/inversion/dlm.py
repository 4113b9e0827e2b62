"""DLM: private images from two sets of weights, the scale between them one more unknown (dlm.txt, section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat

from fedleak.attacks.inversion.engine import invert
from fedleak.attacks.inversion.scaled import BestScale, FreeScale
from fedleak.attacks.inversion.settings import ONE_START, PAPER, PAPER_MLP, TORCH_TOLERANCES, InversionSettings, Preset
from fedleak.attacks.knowledge import require
from fedleak.components import component
from fedleak.types import Gradients, Progress, Reconstruction, Transcript, Weights, silent

__all__ = ["DLM"]


@component
class DLM(InversionSettings):
    """Match gamma times the update (eq. 3), gamma searched along with image and label (eq. 4).

    Ideally gamma is 1 / learning rate. The objective also falls to 0 as the dummies' gradient and gamma vanish
    together, hence the sensitivity to where gamma begins. Gamma itself is the unknown, as in the paper: since it is
    about a hundred times a pixel, it stays near its start while the picture forms. Counted in units of its start
    (`gamma_unit`) it follows the picture, and many searches end at the degenerate minimum; so does `gamma_rule`
    "closed_form", which takes the best gamma for every dummy. A smaller unit holds a small gamma as firmly.
    Gradients are matched like an update, with gamma ideally 1.

    Sees: the broadcast weights and what each client sent back in that round or in round `until`, the network and its
    loss.
    Needs: the number of images behind a message; no learning rate, no number of local steps.
    Guarantees: nothing is read but the transcript; of several starts the one with the smallest objective counts.
    """

    paper: ClassVar[str] = "Deep Leakage from Model in Federated Learning, eq. 3 and 4"
    reads: ClassVar[tuple[type, ...]] = (Gradients, Weights)
    needs: ClassVar[frozenset[str]] = frozenset({"samples"})
    needs_from_weights: ClassVar[frozenset[str]] = frozenset()
    yields: ClassVar[type] = Reconstruction
    revision: ClassVar[int] = 2
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "strong": {},
        "paper": {**PAPER, **TORCH_TOLERANCES},
        "paper_mlp": {**PAPER_MLP, "gamma": 60.0},
        "one_start": ONE_START,
    }

    preset: Preset = "strong"
    gamma: PositiveFloat = Field(default=120.0, description="what gamma begins with")
    gamma_rule: Literal["joint", "closed_form"] = Field(default="joint", description="how gamma is found")
    gamma_unit: PositiveFloat = Field(default=1.0, description="what a joint search counts gamma in; the paper: 1")
    until: int | None = Field(default=None, description="what was sent in this later round; none: in the same round")

    def __call__(self, seen: Transcript, *, rng: torch.Generator, progress: Progress = silent) -> Reconstruction:
        require(self, seen)
        distance = FreeScale(self.gamma, self.gamma_unit) if self.gamma_rule == "joint" else BestScale(self.gamma)
        return invert(seen, self.make_recipe(distance, until=self.until), rng=rng, progress=progress)
