"""Mean images of classes."""

from __future__ import annotations

import torch
from torch import Tensor

from fedleak.types import Examples

__all__ = ["class_means"]


def class_means(examples: Examples) -> tuple[Tensor, Tensor]:
    """(labels in order, the mean image of each)."""
    labels = torch.unique(examples.labels)
    return labels, torch.stack([examples.inputs[examples.labels == label].mean(0) for label in labels])
