"""What is expected of a picture before anything is seen: a term of the objective with its own slope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

__all__ = ["Prior", "TotalVariation"]


class Prior(Protocol):
    """Inputs (b, images, C, H, W) to values (b,) and slopes of the inputs' shape."""

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class TotalVariation:
    """`weight` times the mean forward difference between neighbours, across plus down (dlm.txt eq. 14; Geiping et al.).

    "absolute" is the published form, |d|; "squared", d^2, has a continuous slope, which L-BFGS needs. The mean is over
    pixels, channels and images, so that the weight does not depend on their number.
    """

    weight: float
    norm: Literal["squared", "absolute"] = "squared"

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = inputs.new_zeros(len(inputs)), torch.zeros_like(inputs)
        for along in (-1, -2):
            steps = inputs.diff(dim=along)
            if steps.numel() == 0:  # pictures one pixel wide
                continue
            share = self.weight * len(inputs) / steps.numel()
            squared = self.norm == "squared"
            value = value + share * (steps.square() if squared else steps.abs()).flatten(1).sum(dim=1)
            pull = share * (2 * steps if squared else steps.sign())
            length = inputs.shape[along] - 1
            slope.narrow(along, 1, length).add_(pull)
            slope.narrow(along, 0, length).sub_(pull)
        return value, slope
