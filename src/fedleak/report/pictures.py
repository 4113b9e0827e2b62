"""Pictures: originals beside what the attacker got, chosen by their place and never by how well they came out."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedleak.audit.rows import Row
from fedleak.report.blobs import Arrays, Blobs
from fedleak.report.kinds import EVERYBODY, kind_of, measure, one_of
from fedleak.report.tables import Summary
from fedleak.report.words import decibel

__all__ = ["Pair", "Sheet", "Strip", "data_uri", "pairs_of", "sheet_of", "strip_of"]

MOST = 10
"""Pictures in a row of a sheet."""
LARGEST = 160
"""Longer sides are reduced to this: a page of photographs must stay small enough to send."""
FRAMES = 8


@dataclass(frozen=True)
class Pair:
    """One private image and what the attacker made of it. `place` says which image: the same in every arm.

    Of a class, the mean of its private images; `prior` is the picture that the attack believed in before it saw
    anything, empty where it had none.
    """

    place: str
    client: str
    original: str
    reconstruction: str
    prior: str
    closeness: str
    """PSNR of an image, SSIM of a class."""
    hit: bool | None
    mark: str
    """What `hit` says, in a word or two."""
    status: str


@dataclass(frozen=True)
class Sheet:
    """The originals once, and below them one line per arm. A None in a line: that arm did not attack this image."""

    originals: tuple[Pair, ...]
    lines: tuple[tuple[Summary, tuple[Pair | None, ...]], ...]


@dataclass(frozen=True)
class Strip:
    """How one image came out of the noise: (step, picture) in order, then the original."""

    summary: Summary
    client: str
    frames: tuple[tuple[str, str], ...]
    original: str
    closeness: str


def data_uri(image: NDArray[Any]) -> str:
    """An image (C, H, W) in [0, 1] as a PNG in a data: URI."""
    pixels = np.nan_to_num(image, nan=0.5, posinf=1.0, neginf=0.0)
    levels = np.rint(np.clip(pixels, 0.0, 1.0) * 255).astype(np.uint8)
    if levels.shape[0] in (3, 4):
        picture = Image.fromarray(np.ascontiguousarray(levels[:3].transpose(1, 2, 0)))
    else:
        picture = Image.fromarray(levels[0] if levels.shape[0] == 1 else levels.mean(axis=0).astype(np.uint8))
    longest = max(picture.size)
    if longest > LARGEST:
        width, height = (max(1, round(side * LARGEST / longest)) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BOX)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def pairs_of(found: Summary, blobs: Blobs, most: int = MOST) -> list[Pair]:
    """The first images of a summary: one of every client before a second of any."""
    chosen = [(at, row) for at in range(most) for row in found.rows if at < _stored(row)]
    pairs = []
    for at, row in chosen:
        images = blobs.images(row)
        if not images or at >= len(images["original"]):
            continue
        pairs.append(_pair(row, at, images))
        if len(pairs) == most:
            break
    return pairs


def sheet_of(arms: Sequence[Summary], blobs: Blobs) -> Sheet | None:
    """One attack on one federation under all its defenses."""
    lines = [(found, {pair.place: pair for pair in pairs_of(found, blobs)}) for found in arms]
    places: dict[str, Pair] = {}
    for _, pairs in lines:
        for place, pair in pairs.items():
            places.setdefault(place, pair)
    shown = dict(list(places.items())[:MOST])
    if not shown:
        return None
    return Sheet(
        tuple(shown.values()),
        tuple((found, tuple(pairs.get(place) for place in shown)) for found, pairs in lines if pairs),
    )


def strip_of(summaries: Sequence[Summary], blobs: Blobs) -> Strip | None:
    """The first recovered image or class whose way was recorded, in the order of the summaries."""
    for found in summaries:
        for row in found.rows:
            recovered = [at for at, value in enumerate(row.scores.get(measure(found.kind), ())) if value]
            if not recovered or "images" not in row.artifacts:
                continue
            images, at = blobs.images(row), recovered[0]
            snapshots = images.get("snapshots")
            # An image for which nothing was found has no snapshots; the rest would stand beside the wrong original.
            if snapshots is None or len(snapshots) < 2 or snapshots.shape[1:] != images["original"].shape:
                continue
            steps = images.get("snapshot_steps", np.arange(len(snapshots)))
            kept = sorted({round(i) for i in np.linspace(0, len(snapshots) - 1, min(FRAMES, len(snapshots)))})
            frames = tuple((f"{int(steps[i])}", data_uri(snapshots[i, at])) for i in kept)
            pair = _pair(row, at, images)
            return Strip(found, pair.client, frames, pair.original, pair.closeness)
    return None


def _stored(row: Row) -> int:
    return len(next(iter(row.scores.values()), ())) if "images" in row.artifacts else 0


def _pair(row: Row, at: int, images: Arrays) -> Pair:
    kind = kind_of([row])
    hits, ssim, psnr = (row.scores.get(name, ()) for name in (measure(kind), "ssim", "psnr"))
    shown = data_uri(images["original"][at])
    # The picture itself is part of the place: arms that hold other images must not share a column.
    # Of a class that picture is the same in every round; one_shot is attacked in another than the other arms.
    keys = ("seed", "client") if kind == "classes" else ("seed", "round", "client")
    place = "\x1f".join([str(row.where.get(key)) for key in keys] + [str(at), shown])
    if kind == "classes":
        closeness = f"SSIM {ssim[at]:.2f}".replace("-", "−") if at < len(ssim) else ""
        marks = ("recognised", "missed")
    else:
        closeness = decibel(psnr[at]) if at < len(psnr) else ""
        marks = ("recovered", "not recovered")
    hit = bool(hits[at]) if at < len(hits) else None
    return Pair(
        place=place,
        client=_who(row, at),
        original=shown,
        reconstruction=data_uri(images["reconstruction"][at]),
        prior=data_uri(images["prior"][at]) if "prior" in images else "",
        closeness=closeness,
        hit=hit,
        mark="" if hit is None else marks[0] if hit else marks[1],
        status=str(row.status),
    )


def _who(row: Row, at: int) -> str:
    """client-3, image 2; of a class that all clients were attacked for, person 2."""
    client, kind = str(row.where.get("client", "client")), kind_of([row])
    several = max((len(values) for values in row.scores.values()), default=0) > 1
    if kind == "classes":
        name = f"{one_of(kind, row.where.get('dataset'))} {at + 1}"
        return name if client == EVERYBODY else f"{client}, {name}"
    return f"{client}, image {at + 1}" if several else client
