"""The unknowns of one problem as one row of numbers, and where a search begins."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedleak.types import Normalisation

__all__ = ["Dummies"]

SURE = 8.0
"""Added to a label's logit: a probability of about 0.99 among ten classes and 0.9 among a hundred."""


@dataclass(frozen=True)
class Dummies:
    """`images` inputs, then, where labels are `soft`, one soft label (logits) each, then further unknown numbers.

    Labels that a rule has read off the update are not unknowns: then `soft` is false. Soft labels are a softmax of
    their logits, or with `raw` these numbers as they are. `start` holds what the further unknowns of the distance begin
    with (DLM's gamma).
    """

    images: int
    input_shape: tuple[int, ...]
    classes: int
    soft: bool = True
    raw: bool = False
    start: tuple[float, ...] = ()

    @property
    def pixels(self) -> int:
        return self.images * int(torch.Size(self.input_shape).numel())

    @property
    def drawn(self) -> int:
        """How many of the numbers are drawn: all but the further unknowns."""
        return self.pixels + (self.images * self.classes if self.soft else 0)

    @property
    def size(self) -> int:
        return self.drawn + len(self.start)

    def draw(self, rng: torch.Generator, count: int = 1, spread: float = 1.0) -> Tensor:
        """Starts (count, size): inputs from N(0, spread^2), labels from N(0, 1); the papers draw one with spread 1.

        Of several, every second one is sure of its labels, a class further each time. Where the network already
        predicts the client's label, a start in doubt has a gradient that points the wrong way, and never turns.
        """
        starts = torch.randn(count, self.drawn, generator=rng)
        starts[:, : self.pixels] *= spread
        if count > 1 and self.soft:
            order = torch.randperm(self.classes, generator=rng)
            sure = torch.arange(1, count, 2)
            for image in range(self.images):
                chosen = order[(sure // 2 + image) % self.classes]
                starts[sure, self.pixels + image * self.classes + chosen] += SURE
        return torch.cat([starts, torch.tensor(self.start).expand(count, -1)], dim=1) if self.start else starts

    def inputs(self, points: Tensor) -> Tensor:
        return points[:, : self.pixels].reshape(-1, self.images, *self.input_shape)

    def logits(self, points: Tensor) -> Tensor:
        """What the search moves for the labels; the largest is the label's class."""
        assert self.soft
        return points[:, self.pixels : self.drawn].reshape(-1, self.images, self.classes)

    def labels(self, points: Tensor) -> Tensor:
        logits = self.logits(points)
        return logits if self.raw else logits.softmax(dim=-1)

    def unknowns(self, points: Tensor) -> Tensor:
        """The further unknowns (b, len(start))."""
        return points[:, self.drawn :]

    def box(self, normalisation: Normalisation, like: Tensor) -> tuple[Tensor, Tensor]:
        """The least and the largest number that each unknown may be, so that pixels stay in [0, 1]."""
        sides = []
        for pixel, beyond in ((0.0, -torch.inf), (1.0, torch.inf)):
            side = torch.full((self.size,), beyond, dtype=like.dtype, device=like.device)
            picture = torch.full((self.images, *self.input_shape), pixel, dtype=like.dtype, device=like.device)
            side[: self.pixels] = normalisation.apply(picture).flatten()
            sides.append(side)
        return sides[0], sides[1]
