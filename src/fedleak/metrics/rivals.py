"""The mean images that pictures of classes are compared with, and what such a comparison gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedleak.metrics.classes import class_means
from fedleak.metrics.judgement import Scores
from fedleak.metrics.pixel import usable
from fedleak.metrics.structure import ssim_pairs
from fedleak.types import Examples, Truth

__all__ = ["Evaluation", "Rivals", "rivals_of"]

Evaluation = Literal["standard", "released"]
"""Whose SSIM. standard: windows inside the picture, pixels of range 1, as scikit-image has it. released: the code of
pli.txt's authors, who slide the window over a black border too and take the range of [0, 1] pixels for 2."""
BORDER, RELEASED_RANGE = 5, 2.0


@dataclass(frozen=True, eq=False)
class Rivals:
    """The mean images that a picture is compared with: those of all private labels first, then the public ones."""

    wanted: Tensor
    labels: Tensor
    means: Tensor
    private: int

    def on(self, device: torch.device) -> Rivals:
        return Rivals(self.wanted.to(device), self.labels.to(device), self.means.to(device), self.private)

    def originals(self) -> Tensor:
        """The mean private image of every wanted label."""
        return self.means[torch.searchsorted(self.labels[: self.private], self.wanted)].cpu()

    def scores(self, pictures: Tensor, asked: Sequence[str], evaluation: Evaluation = "standard") -> Scores:
        """`pictures` has one for every wanted label, in order, or one for all of them; one that is not finite scores as
        nothing."""
        fine = usable(pictures).expand(len(self.wanted))
        seen = torch.nan_to_num(pictures, nan=0.5, posinf=1.0, neginf=0.0)
        alike = _similar(seen, self.means, evaluation).expand(len(self.wanted), -1)
        same = self.labels[None] == self.wanted[:, None]
        own = same.clone()
        own[:, self.private :] = False
        mine = torch.where(own, alike, -2.0).amax(dim=1)
        known = {
            "ssim": torch.where(fine, mine.double(), 0.0),
            "attack_accuracy": ((mine > torch.where(own, -2.0, alike).amax(dim=1)) & fine).double(),
            "nearest_public": (same.gather(1, alike.argmax(dim=1, keepdim=True))[:, 0] & fine).double()
            * (alike.argmax(dim=1) >= self.private),
        }
        return {name: [float(value) for value in known[name].tolist()] for name in asked}

    def accuracy(self, pictures: Tensor) -> float:
        """The share of the wanted labels whose picture counts."""
        hits = self.scores(pictures.to(self.means.device), ["attack_accuracy"])["attack_accuracy"]
        return sum(hits) / max(len(hits), 1)


def _similar(pictures: Tensor, means: Tensor, evaluation: Evaluation) -> Tensor:
    if evaluation == "standard":
        return ssim_pairs(pictures, means)
    bordered = [F.pad(images, (BORDER,) * 4) for images in (pictures, means)]
    return ssim_pairs(bordered[0], bordered[1], data_range=RELEASED_RANGE)


def rivals_of(wanted: Tensor, truth: Truth) -> Rivals:
    """The means of all private labels, and of the public ones where it is known whom they show."""
    labels, means = class_means(truth.private)
    parts = [(labels, means)]
    public = truth.public
    if public is not None and public.labels is not None and len(public):
        parts.append(class_means(Examples(public.inputs, public.labels)))
    return Rivals(wanted, torch.cat([label for label, _ in parts]), torch.cat([mean for _, mean in parts]), len(labels))
