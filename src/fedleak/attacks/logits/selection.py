"""Which client's picture is taken for a label (pli.txt eq. 11): the one least like the others', and the smoothest.

How much smoothness counts is where text and code part. Eq. 11 adds up the similarities to all others; the authors' code
takes their mean, and measures the total variation of pictures in [-1, 1] instead of pixels in [0, 1], which is twice as
large. With ten clients the same beta is therefore 18 times heavier there: noise, which is unlike everything, is passed
over.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["RULES", "Rule", "pick", "scores", "total_variation"]

Rule = Literal["sum", "mean"]
"""sum: eq. 11 as it is printed. mean: the authors' code."""
RULES: tuple[Rule, ...] = ("sum", "mean")

WINDOW = 7
"""The released code compares with a uniform window of 7x7."""
C1, C2 = 0.01**2, 0.03**2


def total_variation(pictures: Tensor) -> Tensor:
    """Mean absolute difference of neighbours, down plus across, of every picture (..., C, H, W)."""
    down = (pictures[..., 1:, :] - pictures[..., :-1, :]).abs().mean(dim=(-3, -2, -1))
    across = (pictures[..., :, 1:] - pictures[..., :, :-1]).abs().mean(dim=(-3, -2, -1))
    return down + across


def scores(candidates: Tensor, beta: float, rule: Rule = "sum") -> Tensor:
    """Eq. 11 for pixels (clients, n, C, H, W): the sum of SSIM to the other clients' pictures, plus beta * TV; under
    the rule "mean" their mean, plus beta * TV of the same pictures in [-1, 1].

    SSIM over windows inside the picture, with population covariance and a data range of 1. A picture that is not
    finite scores infinity.
    """
    clients = len(candidates)
    fine = torch.isfinite(candidates).flatten(2).all(dim=2)
    pixels = torch.where(fine[:, :, None, None, None], candidates, torch.zeros_like(candidates)).clamp(0, 1)
    similar = torch.zeros_like(pixels[:, :, 0, 0, 0])
    if clients > 1:
        mean = _window(pixels)
        variance = _window(pixels.square()) - mean.square()
        for one in range(clients):
            covariance = _window(pixels * pixels[one]) - mean * mean[one]
            top = (2 * mean * mean[one] + C1) * (2 * covariance + C2)
            bottom = (mean.square() + mean[one].square() + C1) * (variance + variance[one] + C2)
            alike = (top / bottom).mean(dim=(-3, -2, -1)) * fine[one]
            alike[one] = 0
            similar += alike
    rough = total_variation(pixels)
    if rule == "mean":
        similar, rough = similar / max(1, clients - 1), 2 * rough
    return torch.where(fine, similar + beta * rough, torch.inf)


def pick(candidates: Tensor, beta: float, rule: Rule = "sum") -> Tensor:
    """(n,) the client with the smallest score for every label; the first of equals."""
    return scores(candidates, beta, rule).argmin(dim=0)


def _window(values: Tensor) -> Tensor:
    size = min(WINDOW, *values.shape[-2:])
    flat = F.avg_pool2d(values.flatten(0, 1), size, stride=1)
    return flat.reshape(*values.shape[:2], *flat.shape[1:])
