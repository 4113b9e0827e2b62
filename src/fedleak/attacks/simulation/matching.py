"""MatchEpoch (section 4.4, appendix C): the reconstructions of all epochs, put in one order and averaged.

The reference is the first epoch. Every later one is matched to it by one linear assignment whose cost is -PSNR of the
images in pixels; then the plain mean.
"""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

__all__ = ["epoch_order", "in_order", "pair_costs"]

MSE_FLOOR = 1e-12
FORBIDDEN = 1e6
"""Costs more than any assignment without it: PSNR of pixels stays within a few hundred dB."""


def pair_costs(images: Tensor, reference: Tensor) -> Tensor:
    """-PSNR in dB of every image with every reference, (images, references) float64."""
    one, other = images.double().flatten(1), reference.double().flatten(1)
    # Not by the matrix-product formula: it loses the small distances.
    apart = torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist").square() / one.shape[1]
    return 10 * torch.log10(apart.clamp(min=MSE_FLOOR))


def epoch_order(pixels: Tensor, labels: Tensor | None = None) -> Tensor:
    """(epochs, images, C, H, W) to positions (epochs, images): in epoch e, image order[e, i] is image i of epoch 0.

    With `labels` (epochs, images) only images of the same label are matched, where every epoch has the same labels.
    """
    pixels = pixels.detach().cpu()
    order = torch.arange(pixels.shape[1]).repeat(len(pixels), 1)
    for epoch in range(1, len(pixels)):
        cost = pair_costs(pixels[0], pixels[epoch]).nan_to_num(nan=0.0, posinf=FORBIDDEN / 2, neginf=-FORBIDDEN / 2)
        if labels is not None:
            cost = cost + FORBIDDEN * (labels[0][:, None] != labels[epoch][None, :])
        _, columns = linear_sum_assignment(cost.numpy())
        order[epoch] = torch.as_tensor(columns)
    return order


def in_order(values: Tensor, order: Tensor) -> Tensor:
    """(epochs, images, ...) with the images of every epoch in this order."""
    return torch.stack([one[at.to(one.device)] for one, at in zip(values, order, strict=True)])
