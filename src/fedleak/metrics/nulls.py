"""Null baselines: what an attacker who saw nothing of the victim would score.

A PSNR of 15 dB may be what the average face scores on any face. So every result stands beside guesses that were made
from other people's images (the evaluator's test set) or from nothing at all, scored by the same matching and metrics.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from fedleak.errors import ShapeError
from fedleak.types import Examples

__all__ = ["NULLS", "Guess", "null_guesses"]

NULLS: dict[str, str] = {
    "mean_image": "the mean of other people's images, with their most common label",
    "noise": "uniform noise in [0, 1], with labels drawn evenly from the classes",
    "other_image": "random images of other people, with their labels",
}


@dataclass(frozen=True, eq=False)
class Guess:
    """What an attacker who saw nothing says: pixels shaped like the originals, and a label for each."""

    inputs: Tensor
    labels: Tensor


def null_guesses(originals: Tensor, others: Examples, rng: torch.Generator) -> dict[str, Guess]:
    """One guess for every name in NULLS, as many images as there are originals.

    Only the shape of the originals is read. Without other people's images nothing is known of them, and only noise
    with label 0 is left.
    """
    count = len(originals)
    shape = tuple(originals.shape[1:])
    dtype, device = originals.dtype, originals.device
    noise = torch.rand((count, *shape), generator=rng, dtype=torch.float64).to(device, dtype)
    if len(others) == 0:
        return {"noise": Guess(noise, torch.zeros(count, dtype=torch.long, device=device))}
    if tuple(others.inputs.shape[1:]) != shape:
        raise ShapeError(
            f"others={tuple(others.inputs.shape)}, originals={tuple(originals.shape)}: null baselines need images of "
            "the same shape; give the test set of the same data set"
        )
    counts = Counter(others.labels.tolist())
    commonest = max(sorted(counts), key=lambda label: counts[label])
    classes = torch.tensor(sorted(counts), dtype=torch.long)
    evenly = classes[torch.randint(0, len(classes), (count,), generator=rng)]
    drawn = torch.randint(0, len(others), (count,), generator=rng)
    mean = others.inputs.mean(dim=0, dtype=torch.float64).to(device, dtype)
    return {
        "mean_image": Guess(mean.repeat(count, 1, 1, 1), torch.full((count,), commonest, device=device)),
        "noise": Guess(noise, evenly.to(device)),
        "other_image": Guess(
            others.inputs[drawn.to(others.inputs.device)].to(device, dtype),
            others.labels[drawn.to(others.labels.device)].to(device),
        ),
    }
