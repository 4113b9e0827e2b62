"""Attack accuracy of pli.txt: is the picture found for a class most similar to that class?"""

from __future__ import annotations

import torch
from torch import Tensor

from fedleak.errors import ShapeError
from fedleak.metrics.pixel import usable
from fedleak.metrics.structure import ssim_pairs
from fedleak.types import Examples

__all__ = ["class_hits", "class_means"]


def class_means(examples: Examples) -> tuple[Tensor, Tensor]:
    """(labels in order, the mean image of each)."""
    labels = torch.unique(examples.labels)
    return labels, torch.stack([examples.inputs[examples.labels == label].mean(0) for label in labels])


def class_hits(found: Tensor, named: Tensor, wanted: Tensor, labels: Tensor, means: Tensor) -> Tensor:
    """One 0/1 per wanted label, float64: 1 where the picture named by that label is more similar (SSIM) to the mean of
    that class than to the mean of any other.

    `labels` and `means` are those of all private classes. A label that the attack did not name, or whose picture is not
    finite, is a miss; where it named one twice, the first picture counts.
    """
    if len(found) != len(named):
        raise ShapeError(f"named={len(named)}, found={len(found)}: every picture needs the label it is for")
    hits = torch.zeros(len(wanted), dtype=torch.float64)
    fine = usable(found) if len(found) else torch.zeros(0, dtype=torch.bool)
    for at, label in enumerate(wanted.tolist()):
        ours = torch.nonzero(named == label).flatten()
        if len(ours) == 0 or not bool(fine[ours[0]]):
            continue
        alike = ssim_pairs(found[ours[:1]].to(means), means)[0]
        rivals = alike[labels != label]
        hits[at] = float(bool((alike[labels == label] > rivals).all()) if len(rivals) else 1.0)
    return hits
