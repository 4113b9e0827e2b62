"""PLI: paired-logits inversion (pli.txt)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from fedleak.attacks.logits.engine import invert
from fedleak.attacks.logits.inputs import Q, Rows
from fedleak.attacks.logits.material import Feed
from fedleak.attacks.logits.priors import Kind, PriorRecipe
from fedleak.attacks.logits.recipe import Recipe
from fedleak.attacks.logits.selection import Rule
from fedleak.attacks.logits.settings import LogitSettings
from fedleak.components import component
from fedleak.types import ClassReconstruction, Predictions, Progress, Transcript, silent

__all__ = ["FEEDS", "PLI"]

FEEDS: Mapping[Q, Feed] = {"client": "client", "server": "server"}
"""What a network learns from under an ablation of Q; all others from pairs."""


@component
class PLI(LogitSettings):
    """One inversion network for each client learns to turn what server and client say of a public face into that face;
    asked with the predictions that maximise the confidence gap (eq. 6), it shows the client's private faces.

    Every epoch is one pass of eq. 3 over the public pictures of the private domain and, unless `gamma` is 0, one of
    eq. 10 over the target labels. Of all clients' pictures eq. 11 picks one for each label.

    Sees: the public set, and of every round what each client uploaded and the server's own predictions. Where those
    are not recorded it trains a model of its own on the public set.
    Needs: the target labels.
    Guarantees: nothing is read but the transcript, and no gradient. The prior learns from public people who are no
    targets. One picture for every target label.
    """

    paper: ClassVar[str] = "Takahashi et al. 2023, Breaching FedMD: Image Recovery via Paired-Logits Inversion Attack"
    reads: ClassVar[tuple[type, ...]] = (Predictions,)
    needs: ClassVar[frozenset[str]] = frozenset({"target_labels"})
    needs_from_weights: ClassVar[frozenset[str]] = frozenset()
    yields: ClassVar[type] = ClassReconstruction
    revision: ClassVar[int] = 5
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "strong": {},
        "paper": {"prior": "cyclegan", "prior_epochs": 100, "choice": "sum"},
        # Epoch 50 of CycleGAN, and p_j at every label of a batch.
        "released": {"prior": "cyclegan", "prior_epochs": 50, "rows": "batch", "choice": "mean"},
    }

    preset: Literal["strong", "paper", "released"] = "strong"
    gamma: NonNegativeFloat = Field(default=0.03, description="weight of the prior; 0: neither prior nor eq. 10")
    alpha: PositiveFloat = Field(default=5.0, description="weight of the server's entropy in Q")
    beta: NonNegativeFloat = Field(default=0.1, description="weight of the total variation when a client is picked")
    choice: Rule = Field(
        default="mean", description="how the clients' pictures compare: sum, eq. 11 as printed; mean, as released"
    )
    q: Q = Field(default="full", description="the terms of Q, eq. 4, that the optimal inputs maximise")
    rows: Rows = Field(default="label", description="server's optimal input: for its label; batch: as released")
    prior: Kind = Field(default="autoencoder", description="where the prior comes from; without public labels: mean")
    prior_epochs: NonNegativeInt | None = Field(default=None, description="of the translator; none: its own number")
    prior_width: PositiveInt = Field(default=64, description="channels of the translator's first layer")
    prior_batch: PositiveInt | None = Field(default=None, description="of the translator; none: its own number")
    prior_blur: PositiveInt | None = Field(
        default=None, description="side of a box: where only targets are public and blurred, blur D_0 to learn from it"
    )
    cache: str | None = Field(default=None, description="folder in which learned priors are kept between runs")

    @property
    def translates(self) -> bool:
        """The prior is learned, so the public set must have another domain to translate from."""
        return self.gamma > 0 and self.prior != "mean"

    def __call__(self, seen: Transcript, *, rng: torch.Generator, progress: Progress = silent) -> ClassReconstruction:
        prior = PriorRecipe(
            self.prior, self.prior_epochs, self.prior_width, self.prior_batch, self.cache, self.prior_blur
        )
        recipe = Recipe(
            feed=FEEDS.get(self.q, "paired"),
            q=self.q,
            alpha=self.alpha,
            beta=self.beta,
            choice=self.choice,
            gamma=self.gamma,
            rows=self.rows,
            prior=prior,
            **self.shared(),
        )
        return invert(self, seen, recipe, rng=rng, progress=progress)
