"""What a server makes of predictions: pure functions of (clients, examples, classes) tensors."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedleak.errors import ShapeError
from fedleak.learning.objectives import entropy
from fedleak.learning.simplex import onto_simplex

__all__ = ["Scale", "agreed", "as_probabilities", "ensemble", "mean_of", "sharpened", "teachers"]

Scale = Literal["logits", "probabilities"]


def agreed(predictions: Tensor) -> Tensor:
    """Checks the shape that all rules take."""
    if predictions.ndim != 3 or len(predictions) == 0:
        raise ShapeError(
            f"predictions of shape {tuple(predictions.shape)}: expected (clients, examples, classes) of at least one"
        )
    return predictions


def mean_of(predictions: Tensor) -> Tensor:
    """FedMD (pli.txt, algorithm S-1, line 6): the mean over clients, every client alike.

    >>> mean_of(torch.tensor([[[1.0, 3.0]], [[3.0, -1.0]]]))
    tensor([[2., 1.]])
    """
    return agreed(predictions).mean(dim=0)


def sharpened(predictions: Tensor, temperature: float) -> Tensor:
    """DS-FL's entropy reduction aggregation (algorithm S-3, line 5): softmax(mean / temperature)."""
    return torch.softmax(mean_of(predictions) / temperature, dim=-1)


def as_probabilities(values: Tensor, scale: Scale) -> Tensor:
    """Points of the simplex: the softmax of logits; of probabilities themselves, which a defense may have moved."""
    return torch.softmax(values, dim=-1) if scale == "logits" else onto_simplex(values)


def ensemble(predictions: Tensor, labels: Tensor, scale: Scale) -> tuple[Tensor, Tensor]:
    """FedGEMS: what the clients that are right about an example say together, as probabilities (n, J); and whether any
    is right (n,). A client's weight is the softmax, over the clients that are right, of 1 / entropy: surer ones count
    for more. Of logits the logits are weighed, of probabilities the probabilities.
    """
    right = agreed(predictions).argmax(dim=-1) == labels
    chances = as_probabilities(predictions, scale)
    sure = 1.0 / entropy(chances.clamp_min(torch.finfo(chances.dtype).tiny).log()).clamp_min(1e-6)
    known = right.any(dim=0)
    # Where nobody is right all weights would be 0 / 0: let everybody count, and say that it means nothing.
    weights = torch.softmax(torch.where(right | ~known, sure, -torch.inf), dim=0)
    return as_probabilities((weights[..., None] * predictions).sum(dim=0), scale), known


def teachers(
    stored: Tensor, has_stored: Tensor, together: Tensor | None = None, known: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """FedGEMS' selective rule: whom the server listens to about an example that it gets wrong.

    `stored` (n, J) are its own probabilities from when it got the example right (`has_stored`), which go before
    `together`, what the clients say (`known`: where one of them is right). Gives the teacher's probabilities and where
    there is one; an example without is learnt from its label alone, as is one that the server gets right.
    """
    if together is None or known is None:
        return stored, has_stored
    return torch.where(has_stored[:, None], stored, together), has_stored | known
