"""The FedAvg simulation: images from weights after many local steps, by running the client's training on dummies."""

from __future__ import annotations

from typing import ClassVar

import torch

from fedleak.attacks.knowledge import require
from fedleak.attacks.simulation.needs import USES, needs_with
from fedleak.attacks.simulation.run import reconstruct
from fedleak.attacks.simulation.settings import SimulationSettings
from fedleak.components import component
from fedleak.types import Progress, Reconstruction, Transcript, Weights, silent

__all__ = ["FedAvgSimulation"]


@component
class FedAvgSimulation(SimulationSettings):
    """Find dummies on which the client's local training ends where the client's did (algorithm 2).

    Every epoch has dummies of its own, tied together by a prior on what does not depend on their order (eq. 3); after
    the search the epochs are matched and averaged. Labels are told, or read off the last layer. `method` also offers
    the baselines of section 5. Presets: "released", as the authors' table scripts run it; "paper", its cosine distance;
    "strong", the best that was found here. Plain SGD is simulated: of a client with momentum, where that is disclosed,
    the update is taken to be as many times longer as momentum makes it.

    Sees: the broadcast weights and the weights each client sent back in one round, the network and its loss.
    Needs: number of samples, batch size, local epochs and learning rate; with labels="known" the label counts, with
        labels="known_batches" the labels of every batch. Uses momentum where it is disclosed.
    Guarantees: nothing is read but the transcript; of several starts the one with the smallest objective counts; a
        search that leaves the finite numbers ends at its last finite iterate.
    """

    paper: ClassVar[str] = "Data Leakage in Federated Averaging, algorithm 2"
    reads: ClassVar[tuple[type, ...]] = (Weights,)
    needs: ClassVar[frozenset[str]] = needs_with(
        {"known": frozenset({"label_counts"}), "known_batches": frozenset({"batch_labels"})}
    )
    needs_from_weights: ClassVar[frozenset[str]] = frozenset()
    uses: ClassVar[frozenset[str]] = USES
    yields: ClassVar[type] = Reconstruction
    revision: ClassVar[int] = 2

    def __call__(self, seen: Transcript, *, rng: torch.Generator, progress: Progress = silent) -> Reconstruction:
        require(self, seen)
        return reconstruct(seen, self, rng=rng, progress=progress)
