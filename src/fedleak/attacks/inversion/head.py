"""Where a network's classifier is: found by what it does to the output, not by where it stands among the parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedleak.errors import RefusedError
from fedleak.learning.functional import Network
from fedleak.types import Named

__all__ = ["Head", "find_head"]


@dataclass(frozen=True)
class Head:
    """The names of the last layer's weight, one row per class, and of its bias where it has one.

    On noise for pictures, `expected` (classes,) is the mean probability of each class, and `features` the mean sum of
    what the layer is given: about what they are on any pictures while the network has learnt little.
    """

    weight: str
    bias: str | None
    expected: Tensor
    features: float

    def rows(self, update: Named) -> Tensor:
        """The part of an update that belongs to the weight, (classes, features); for a 1x1 convolution too."""
        return update[self.weight].flatten(1)


def find_head(network: Network, weights: Named, buffers: Named, noise: Tensor, classes: int) -> Head:
    """The layer that makes the output for `noise`, some inputs. RefusedError where no tensor has one row per class.

    A tensor with one row per class belongs to the classifier if the difference between the outputs of two classes
    depends on the rows of these two alone; in a hidden layer of the same size it depends on all of them. Differences,
    because a network may end in a log-softmax. Where no tensor passes (dead units), the last one of that shape is it.
    """
    tensors = {name: value.detach().requires_grad_() for name, value in weights.items()}
    named = [name for name, value in tensors.items() if value.dim() >= 1 and value.shape[0] == classes]
    kept = {name: value.clone() for name, value in buffers.items()}
    outputs = network({**tensors, **kept}, noise)
    apart = (outputs[:, 0] - outputs[:, 1] if classes > 2 else outputs[:, 0]).mean()
    slopes = torch.autograd.grad(apart, [tensors[name] for name in named], allow_unused=True) if named else ()
    rows = 2 if classes > 2 else 1
    making = [n for n, s in zip(named, slopes, strict=True) if s is not None and _only(s, rows)]
    matrices = [n for n in named if tensors[n].dim() >= 2]
    found = [n for n in matrices if n in making] or matrices
    if not found:
        raise RefusedError(
            f"labels: the network has no layer whose weight has one row for each of the {classes} classes; "
            "use labels='joint', which needs none"
        )
    biases = [n for n in making if tensors[n].dim() == 1]
    slope = slopes[named.index(found[-1])]
    features = float(slope[0].sum()) if slope is not None else 0.0
    return Head(found[-1], biases[-1] if biases else None, outputs.detach().softmax(dim=-1).mean(dim=0), features)


def _only(slope: Tensor, rows: int) -> bool:
    """Whether each of the first rows has an influence, and no other one has."""
    used = slope.flatten(1).abs().sum(dim=1) if slope.dim() > 1 else slope.abs()
    return bool((used[:rows] > 0).all()) and not bool((used[rows:] > 0).any())
