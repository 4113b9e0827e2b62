"""Pixels for positions: what clients hold, and the public set with its altered images."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedleak.data.dataset import Dataset, Images
from fedleak.data.division import Division
from fedleak.data.domains import MASK_DRAWS, blurred, masked
from fedleak.data.drawing import renumbered
from fedleak.data.pixels import as_pixels, fitted
from fedleak.data.spec import DataSpec
from fedleak.errors import RefusedError
from fedleak.seeding import Seeds
from fedleak.types import PublicSet

__all__ = ["pixels_of", "public_set"]

CHUNK = 64
"""Images that are worked on at once: the rest stays uint8 meanwhile, and a chunk stays in the processor's cache."""

Shape = tuple[int, int, int]
Alter = Callable[[Tensor, Tensor], Tensor]
"""uint8 images and their positions to uint8 images."""


def pixels_of(
    images: Images, index: Tensor, shape: Shape, alter: Alter | None = None, out: Tensor | None = None
) -> Tensor:
    """The images at `index` as float32 pixels in [0, 1] of one shape, written into `out` where it is given."""
    out = torch.empty((len(index), *shape)) if out is None else out
    for start in range(0, len(index), CHUNK):
        chosen = index[start : start + CHUNK]
        raw = fitted(images.inputs[chosen], shape)
        out[start : start + CHUNK] = as_pixels(raw if alter is None else alter(raw, chosen))
    return out


def public_set(
    spec: DataSpec,
    dataset: Dataset,
    other: Dataset | None,
    division: Division,
    shape: Shape,
    classes: int,
    streams: Seeds,
) -> PublicSet:
    """The parts of the public set in one, with labels where the specification wants them."""
    public = spec.public
    assert public is not None  # the caller has looked
    alter = _alteration(spec, len(dataset.train), streams)
    counts = [len(part.index) for part in division.public]
    inputs = torch.empty((sum(counts), *shape))
    labels = []
    for part, out in zip(division.public, torch.split(inputs, counts), strict=True):
        images = dataset.train if part.private or other is None else other.train
        pixels_of(images, part.index, shape, alter if part.altered else None, out)
        wanted = spec.classes if part.private else public.classes
        labels.append(renumbered(images.labels, wanted)[part.index])
    domains = torch.cat([torch.full((len(part.index),), part.domain) for part in division.public])
    if not public.labelled:
        return PublicSet(inputs, None, domains)
    together = torch.cat(labels)
    low, high = int(together.min()), int(together.max())
    if low < 0 or high >= classes:
        raise RefusedError(
            f"public.labels=true: the public labels go beyond the {classes} outputs of the networks; choose "
            "public.classes, or leave the public set without labels"
        )
    return PublicSet(inputs, together, domains)


def _alteration(spec: DataSpec, count: int, streams: Seeds) -> Alter:
    assert spec.public is not None  # the caller has looked
    if spec.public.domain == "blur":
        box = spec.public.box
        return lambda raw, _: blurred(raw, box)
    # A mask belongs to its image, whoever the targets are: masks are drawn for the whole data set.
    draws = torch.rand((count, MASK_DRAWS), generator=streams.generator("mask"))
    return lambda raw, index: masked(raw, draws[index])
