"""DLG: deep leakage from gradients (Zhu et al. 2019; the baseline of dlm.txt)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field, PositiveFloat

from fedleak.attacks.inversion.distances import SquaredL2
from fedleak.attacks.inversion.engine import invert
from fedleak.attacks.inversion.settings import ONE_START, PAPER, PAPER_MLP, TORCH_TOLERANCES, InversionSettings, Preset
from fedleak.attacks.knowledge import known, require
from fedleak.components import component
from fedleak.errors import RefusedError
from fedleak.types import Gradients, Message, Progress, Reconstruction, Setup, Transcript, Weights, silent

__all__ = ["DLG", "gradient_scale"]


@component
class DLG(InversionSettings):
    """Match the gradient itself: the squared distance between the dummies' gradient and `scale` times the client's.

    A `scale` of 1 is DLG; others are eq. 10 and table 2 of DLM's paper. The presets of the paper keep torch's default
    tolerances; "strong" sets them to 0, bounds the steps and restarts.

    Sees: the broadcast weights and what each client sent back, the network and its loss.
    Needs: the number of images behind a message; from weights also the learning rate and the number of local steps
    (epochs and batch size), since a difference of weights is only then a gradient.
    Guarantees: nothing is read but the transcript; of several starts the one with the smallest objective counts.
    """

    paper: ClassVar[str] = (
        "Zhu et al. 2019, Deep Leakage from Gradients; Deep Leakage from Model in Federated Learning, table 1"
    )
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
    scale: PositiveFloat = Field(default=1.0, description="k of eq. 10: what the client's gradient is multiplied by")

    def __call__(self, seen: Transcript, *, rng: torch.Generator, progress: Progress = silent) -> Reconstruction:
        require(self, seen)
        recipe = self.make_recipe(SquaredL2(), scale=gradient_scale, times=self.scale)
        return invert(seen, recipe, rng=rng, progress=progress)


def gradient_scale(setup: Setup, message: Message) -> float:
    """What turns an apparent gradient into a mean gradient: 1 for gradients, 1 / (lr * local steps) for weights."""
    if isinstance(message.payload, Gradients):
        return 1.0
    told = known(setup, message)
    samples, epochs, size, lr = (told[name] for name in ("samples", "epochs", "batch_size", "lr"))
    for name, value in (("epochs", epochs), ("lr", lr), ("batch_size", 1 if size is None else size)):
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise RefusedError(f"{message.sender}: {name}={value!r}: must be a number greater than 0")
    steps = epochs * (1 if size is None else math.ceil(samples / size))
    return float(1 / (lr * steps))
