"""The attacker's own model f_0, for a recording without the server's predictions: trained on the public set alone."""

from __future__ import annotations

import torch
from torch import Tensor

from fedleak.attacks.logits.observed import Answers, Observed, Scene
from fedleak.learning.batches import epoch_batches
from fedleak.learning.functional import cross_entropy
from fedleak.learning.stacked import Stack
from fedleak.models import build_model
from fedleak.types import Setup

__all__ = ["OwnServer"]

LR, WEIGHT_DECAY, BATCH = 1e-3, 1e-4, 64
"""How the papers train their server (pli.txt, appendix C)."""
SHARPNESS = 0.1
"""The temperature of DS-FL's entropy reduction."""


class OwnServer:
    """f_0 of pli.txt: one epoch before every round, on the public labels, or where there are none on the clients'
    consensus, sharpened as in DS-FL."""

    def __init__(self, setup: Setup, scene: Scene, seed: int) -> None:
        self._rng = torch.Generator().manual_seed(seed)
        # Apart from the order of the batches, which then does not depend on whether the network drops out.
        self._dropped = torch.Generator().manual_seed(seed + 1)
        module = build_model(setup.model, setup.input_shape, setup.classes, self._rng)
        device = scene.pictures.device
        self._stack = Stack([module], lr=LR, weight_decay=WEIGHT_DECAY, device=device)
        pixels = (scene.pictures.permute(0, 3, 1, 2) + 1) / 2
        self._inputs = setup.normalisation.apply(pixels).contiguous()
        self._scene = scene

    def after(self, seen: Observed) -> Answers:
        """Its predictions on the whole public set once it has learnt from this round."""
        rows, targets = self._lesson(seen)
        batches = [rows[index.to(rows.device)] for index in epoch_batches(len(rows), BATCH, self._rng)]
        self._stack.fit(cross_entropy, self._inputs, [targets], [batches], rng=self._dropped)
        everything = torch.arange(len(self._scene), device=self._inputs.device)
        return Answers(self._stack.predict(self._inputs)[0], everything)

    def _lesson(self, seen: Observed) -> tuple[Tensor, Tensor]:
        """Positions in the public set, and a target for every position of it."""
        scene = self._scene
        everything = torch.arange(len(scene), device=self._inputs.device)
        # DS-FL's public labels, where they are recorded, may be of other classes than the network's.
        if scene.labels is not None and 0 <= int(scene.labels.min()) <= int(scene.labels.max()) < scene.classes:
            return everything, scene.labels
        clients = list(seen.clients.values())
        rows = seen.answered(everything, clients, len(scene))
        mean = torch.stack([one.at(rows, len(scene)).softmax(dim=1) for one in clients]).mean(dim=0)
        targets = torch.zeros(len(scene), scene.classes, device=self._inputs.device)
        targets[rows] = torch.softmax(mean / SHARPNESS, dim=1)
        return rows, targets
