"""Figures of pli.txt that are neither curves nor strips of snapshots: histograms (3, 4) and the prior (6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedleak.audit.rows import Row
from fedleak.reproduction.evidence import Evidence
from fedleak.reproduction.table import Figure

__all__ = ["Where", "histograms", "priors", "side_by_side", "split", "values_of"]

Where = Mapping[str, Any]
Members = Sequence[tuple[Where, Row]]

BINS = 30
SHOWN = 8
"""People whose prior is shown."""
WIDTH, HEIGHT, SIDE = 5.2, 3.6, 0.9


def histograms(figure: Figure, members: Members, evidence: Evidence) -> Any:
    """One axis for every facet: the share of the values in each bin, one line for every kind of value."""
    pooled = {
        title: values_of([row for _, row in group], figure.y, evidence)
        for title, group in split(members, figure.facets)
    }
    pooled = {title: kinds for title, kinds in pooled.items() if kinds}
    if not pooled:
        return None
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(1, len(pooled), figsize=(WIDTH * len(pooled), HEIGHT), squeeze=False)
    for axis, (title, kinds) in zip(axes[0], pooled.items(), strict=True):
        everything = np.concatenate(list(kinds.values()))
        edges = np.linspace(everything.min(), max(everything.max(), everything.min() + 1e-6), BINS + 1)
        for name, values in kinds.items():
            axis.stairs(np.histogram(values, edges)[0] / len(values), edges, label=name)
        axis.set(title=title, xlabel=figure.y, ylabel="share")
        axis.legend(fontsize=7)
    return drawn


def values_of(rows: Sequence[Row], y: str, evidence: Evidence) -> dict[str, Any]:
    """Kind to numbers. entropy: of the predictions of server and clients on public and private images (figure 3).
    similarity: a client's picture of a label, to the pictures of the others (the first term of eq. 11, as a mean), of
    clients that hold the label and of clients that do not (figure 4)."""
    found: dict[str, list[Any]] = {}
    for row in rows:
        kinds: Mapping[str, Any] = (
            evidence.images(row.artifacts.get("entropies", ""))
            if y == "entropy"
            else evidence.facts(row).get("similarity", {})
        )
        for name, values in kinds.items():
            found.setdefault(name, []).append(np.asarray(values, dtype=float).ravel())
    # In a fixed order: a file of tensors has none.
    joined = {name: np.concatenate(found[name]) for name in sorted(found)}
    return {name: values[np.isfinite(values)] for name, values in joined.items() if np.isfinite(values).any()}


def priors(figure: Figure, members: Members, evidence: Evidence) -> Any:
    """For every facet two lines of pictures: the prior of some people, below it the mean of their private images."""
    lines = []
    for title, group in split(members, figure.facets):
        shown = evidence.images(group[0][1].artifacts.get("images", ""))
        if {"prior", "original"} <= shown.keys():
            lines += [(f"{title} {name}".strip(), shown[name][:SHOWN]) for name in ("prior", "original")]
    if not lines:
        return None
    from matplotlib import pyplot

    wide = max(len(pictures) for _, pictures in lines)
    drawn, axis = pyplot.subplots(figsize=(wide * SIDE, len(lines) * SIDE))
    for at, (title, pictures) in enumerate(lines):
        row = [*pictures, *[None] * (wide - len(pictures))]
        axis.imshow(side_by_side(row), extent=(0, wide, at + 1, at), aspect="auto", interpolation="nearest")
        axis.text(-0.15, at + 0.5, title, fontsize=6, ha="right", va="center")
    axis.set(xlim=(0, wide), ylim=(len(lines), 0))
    axis.set_axis_off()
    drawn.subplots_adjust(0, 0, 1, 1)
    return drawn


def side_by_side(pictures: Sequence[Any]) -> Any:
    """Pictures (C, H, W) as one (H, W, 3), a white rim around each; none: white."""
    _, height, width = next(picture.shape for picture in pictures if picture is not None)
    rim = max(1, width // 28)
    whole = np.ones((height + 2 * rim, len(pictures) * (width + 2 * rim), 3))
    for place, picture in enumerate(pictures):
        if picture is not None:
            pixels = np.clip(np.nan_to_num(picture, nan=0.5), 0, 1).transpose(1, 2, 0)
            left = place * (width + 2 * rim) + rim
            whole[rim : rim + height, left : left + width] = pixels if pixels.shape[2] == 3 else pixels[:, :, :1]
    return whole


def split(members: Sequence[tuple[Where, Any]], keys: Sequence[str]) -> Iterator[tuple[str, list[tuple[Where, Any]]]]:
    """Members by the values of some keys, each group with a title; in the order in which they first appear."""
    groups: dict[tuple[Any, ...], list[tuple[Where, Any]]] = {}
    for where, member in members:
        groups.setdefault(tuple(where.get(key) for key in keys), []).append((where, member))
    for values, group in groups.items():
        named = [
            f"{key} {value:g}" if isinstance(value, int | float) else str(value)
            for key, value in zip(keys, values, strict=True)
            if value is not None
        ]
        yield ", ".join(named), group
