"""Labels read off the apparent gradient of the classifier, before any picture is known.

For softmax and cross-entropy the gradient of class c's row is the mean of (p_c - [label is c]) times the features, and
of its bias the mean of (p_c - [label is c]): only classes that occur pull down. Every rule gets an apparent gradient
(learning/updates.py settles its sign), the number of images, and what turns the update into a mean gradient where that
is known; the rules of iDLG and Yin do without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from fedleak.attacks.inversion.head import Head
from fedleak.errors import RefusedError
from fedleak.types import Named

__all__ = ["RULES", "LabelRule", "idlg", "llg", "whole", "yin"]

TINY = 1e-30

LabelRule = Literal["joint", "raw", "idlg", "yin", "llg"]
"""How an attack comes by the labels: "joint" searches soft labels (a softmax of logits) along with the pictures, "raw"
any numbers in their place; the others read them off.

With the features h of the last layer fixed, k times the gradient of a label y asks for the label (1 - k) p + k y. A
softmax can be that for k < 1 only; raw numbers can be k y for any k. So a target that is scaled up (table 2, k > 1) has
an exact solution with raw labels alone."""


def idlg(update: Named, head: Head, images: int, scale: float | None = None) -> Tensor:
    """The label of one image: the only class that pulls down (Zhao et al. 2020).

    With a bias, the class with the smallest bias gradient, whatever the features are. Without one, the class with the
    longest row: (1 - p) of the label is the sum of all other p, so no other row is longer. Between two classes both
    rows are as long, and the one with the smaller sum is taken, which is right for features that are not negative.
    """
    if images != 1:
        raise RefusedError(f"labels='idlg': reads the label of one image, and there are {images}; use 'yin' or 'llg'")
    if head.bias is not None:
        return update[head.bias].argmin()[None]
    rows = head.rows(update)
    pull = rows.sum(dim=1) if len(rows) == 2 else -torch.linalg.vector_norm(rows, dim=1)
    return pull.argmin()[None]


def yin(update: Named, head: Head, images: int, scale: float | None = None) -> Tensor:
    """Distinct labels: the classes with the smallest row minima of the weight (Yin et al. 2021, eq. 5)."""
    rows = head.rows(update)
    if images > len(rows):
        raise RefusedError(
            f"labels='yin': finds distinct labels, and {images} images cannot have distinct ones among {len(rows)} "
            "classes; use 'llg'"
        )
    return rows.amin(dim=1).argsort()[:images].sort().values


def llg(update: Named, head: Head, images: int, scale: float | None = None) -> Tensor:
    """Label counts: class c pulls with p_c - (its share of the labels) (Wainakh et al. 2022, with the model known).

    Read off the bias where there is one, since features of either sign do not disturb it, else off the row sums, whose
    unit is the sum of the features. p comes from noise put through the network, as do the features. Where the scale of
    the update is not known, the class that pushes up most is taken not to occur: with fewer images than classes that
    is so, with more it often is.
    """
    pull = (update[head.bias] if head.bias is not None else head.rows(update).sum(dim=1)).double()
    expected = head.expected.double()
    unit = 1.0 if head.bias is not None else head.features
    if scale is not None and unit != 0:
        pushed = pull * scale / unit
    else:
        pushed = pull / (pull / expected).max().clamp(min=TINY)
    return whole(expected - pushed, images).to(pull.device)


def whole(shares: Tensor, total: int) -> Tensor:
    """Labels (total,) in order, of which each class has its share, rounded by the largest remainders."""
    shares = shares.clamp(min=0).cpu()
    if not bool(shares.isfinite().all()) or float(shares.sum()) <= 0:
        raise RefusedError("labels='llg': no class pulls the last layer down; use labels='joint'")
    exact = shares * (total / shares.sum())
    counts = exact.floor()
    most = (exact - counts).argsort(descending=True, stable=True)
    counts[most[: total - int(counts.sum())]] += 1
    return torch.repeat_interleave(torch.arange(len(counts)), counts.long())


RULES: dict[str, Callable[[Named, Head, int, float | None], Tensor]] = {"idlg": idlg, "yin": yin, "llg": llg}
