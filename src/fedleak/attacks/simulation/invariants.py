"""What every epoch must agree in, since each goes over the same examples: the epoch order-invariant prior (eq. 3).

g maps the images of an epoch to something that their order does not matter to: the mean or the largest value, pixel by
pixel, of the images or of what a random convolution makes of them. The prior is the mean, over all ordered pairs of
epochs, of the mean squared (l2) or mean absolute (l1) difference of g.

Two are fedleak's own and use the labels, which the attack has anyway. "class_mean" is the mean image of every class:
where most labels occur once it says which image of one epoch is which of another. "image" is every single image, in the
order of the classes and within a class in the order of the batches: with one split for all epochs nothing is lost by
taking an image to stand in the same place in each, and the weight of the prior leads from "no_prior" (0) to "shared".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["CHANNELS", "Invariant", "InvariantNorm", "InvariantPrior", "pairwise", "random_kernel"]

Invariant = Literal["mean", "max", "conv_mean", "conv_max", "class_mean", "image"]
InvariantNorm = Literal["l1", "l2"]

CHANNELS = 96
"""Of the random convolution: as many as fitted the authors' memory (section 5.4)."""

TRUNCATED = 0.87962566103423978
"""Standard deviation of a standard normal cut off at 2: lecun-normal divides by it to have variance 1/fan_in."""


def random_kernel(channels: int, rng: torch.Generator) -> Tensor:
    """A lecun-normal 3x3 convolution (96, channels, 3, 3), zero bias: drawn once per client, fixed in the search."""
    kernel = torch.empty(CHANNELS, channels, 3, 3)
    torch.nn.init.trunc_normal_(kernel, 0.0, 1.0, -2.0, 2.0, generator=rng)
    return kernel * (math.sqrt(1.0 / (channels * 9)) / TRUNCATED)


def pairwise(values: Tensor, norm: InvariantNorm) -> Tensor:
    """(clients, epochs, ...) to (clients,): the mean, over all E * E ordered pairs of epochs, of the mean (squared)
    difference. Squares: twice the variance. Absolute values: sorted, so that no pair has to be formed.
    """
    epochs = values.shape[1]
    if norm == "l2":
        return 2 * (values - values.mean(dim=1, keepdim=True)).square().flatten(1).mean(dim=1)
    ranks = 2 * torch.arange(1, epochs + 1, device=values.device, dtype=values.dtype) - epochs - 1
    ordered = values.sort(dim=1).values
    apart = (ordered * ranks.reshape(-1, *[1] * (values.dim() - 2))).sum(dim=1)
    return 2 * apart.flatten(1).mean(dim=1) / epochs**2


@dataclass(frozen=True, eq=False)
class InvariantPrior:
    """`kernels` is one random convolution per client, on the device of the dummies, for the two g that use one;
    `labels` (clients, epochs, images) for the two that use them."""

    g: Invariant
    norm: InvariantNorm
    kernels: Sequence[Tensor] = ()
    labels: Tensor | None = None

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """(clients, epochs, images, C, H, W) to values (clients,) and slopes. With the random convolution a client at
        a time, since that of one client's images is as large as everything else together."""
        if inputs.shape[1] == 1:
            return inputs.new_zeros(len(inputs)), torch.zeros_like(inputs)
        at_once = 1 if self.g.startswith("conv") else len(inputs)
        values, slopes = [], []
        for first in range(0, len(inputs), at_once):
            some = inputs[first : first + at_once].detach().requires_grad_()
            with torch.enable_grad():
                value = pairwise(self._g(some, first), self.norm)
            values.append(value.detach())
            slopes.append(torch.autograd.grad(value.sum(), [some])[0])
        return torch.cat(values), torch.cat(slopes)

    def take(self, rows: Sequence[int]) -> InvariantPrior:
        kernels = [self.kernels[row] for row in rows] if self.kernels else ()
        return InvariantPrior(self.g, self.norm, kernels, None if self.labels is None else self.labels[list(rows)])

    def _g(self, images: Tensor, first: int) -> Tensor:
        """(clients, epochs, images, C, H, W) to (clients, epochs, ...); `first` is the number of the first client."""
        if self.g in ("class_mean", "image"):
            assert self.labels is not None
            return _by_class(images, self.labels[first : first + len(images)], self.g == "class_mean")
        if self.g.startswith("conv"):
            made = F.conv2d(images.flatten(0, 2), self.kernels[first], padding=1)
            images = made.reshape(*images.shape[:3], *made.shape[1:])
        return images.mean(dim=2) if self.g.endswith("mean") else images.amax(dim=2)


def _by_class(images: Tensor, labels: Tensor, mean: bool) -> Tensor:
    """In every epoch, in the order of the classes, the images or each one's class mean, (clients, epochs, images, -1):
    a class counts as often as it occurs."""
    flat = images.flatten(3)
    if mean:
        same = (labels[..., :, None] == labels[..., None, :]).to(images)
        flat = (same / same.sum(dim=-1, keepdim=True)) @ flat
    order = labels.argsort(dim=-1, stable=True)
    return torch.gather(flat, 2, order[..., None].expand_as(flat))
