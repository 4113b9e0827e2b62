"""Draws the figures of a reproduction next to its report: PNG to look at, SVG to print.

sweep        a statistic with its 95 % interval against a swept value, from the cells
iterations   loss or PSNR against the iteration: the median of the victims and the middle half around it
pictures     the reconstruction on its way, beside the original
prior        what the attack believed before it saw a message, beside the original
histogram    shares of values: the entropy of predictions, the similarity of clients' pictures (see faces.py)
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedleak.audit.rows import UTILITY, Row
from fedleak.files import replace_file
from fedleak.reproduction.cells import Cell
from fedleak.reproduction.evidence import Evidence
from fedleak.reproduction.faces import Where, histograms, priors, side_by_side, split
from fedleak.reproduction.table import Figure, Table

__all__ = ["curves_over_iterations", "draw_figures"]

STRIPS = 4
"""Pictures that are shown on their way for each facet: those of the first victims, however many seeds ran."""
TICKS = 8
"""Values of a sweep that are all named at a logarithmic axis."""
WIDTH, HEIGHT = 5.2, 3.6
SIDE = 0.9
"""Inches of a picture in a strip; a strip is one inch high, with the words above it."""

Curve = tuple[list[int], list[float], list[float], list[float]]
"""Iterations, median, lower and upper quarter."""


def draw_figures(table: Table, found: Sequence[Cell], rows: Sequence[Row], evidence: Evidence, out: Path) -> list[Path]:
    """Every figure of a table, written to `out`; one that has nothing to show is left out."""
    if not table.figures:
        return []
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    written = []
    # A fixed salt, no date: the same cells give the same bytes.
    with pyplot.rc_context({"svg.hashsalt": "fedleak", "font.size": 9}):
        for figure in table.figures:
            drawn = _drawn(figure, table, found, rows, evidence)
            if drawn is None:
                continue
            for kind, extra in (("png", {"Software": None}), ("svg", {"Date": None})):
                buffer = io.BytesIO()
                drawn.savefig(buffer, format=kind, dpi=144, bbox_inches="tight", metadata=extra)
                written.append(out / f"{figure.name}.{kind}")
                replace_file(written[-1], buffer.getvalue())
            pyplot.close(drawn)
    return written


def _drawn(figure: Figure, table: Table, found: Sequence[Cell], rows: Sequence[Row], evidence: Evidence) -> Any:
    attacked = [(table.renamed(row.where), row) for row in rows if row.where.get("attack") != UTILITY]
    attacked = [(where, row) for where, row in attacked if all(key in where for key in figure.lines)]
    if figure.draw == "histogram":
        return histograms(figure, [(table.renamed(row.where), row) for row in rows], evidence)
    if figure.draw == "prior":
        return priors(figure, attacked, evidence)
    if figure.draw == "pictures":
        return _pictures(figure, attacked, evidence)
    if figure.draw == "sweep":
        needed = (figure.x, *figure.lines)
        chosen = [(c.where, c) for c in found if c.metric == figure.y and all(key in c.where for key in needed)]
        facets = {title: list(split(group, figure.lines)) for title, group in split(chosen, figure.facets)}
    else:
        facets = {title: list(split(group, figure.lines)) for title, group in split(attacked, figure.facets)}
    if not facets:
        return None
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(1, len(facets), figsize=(WIDTH * len(facets), HEIGHT), squeeze=False)
    empty = True
    for axis, (title, lines) in zip(axes[0], facets.items(), strict=True):
        for colour, (label, members) in enumerate(lines):
            shade = pyplot.get_cmap("viridis")(colour / max(len(lines) - 1, 1) * 0.9)
            if figure.draw == "sweep":
                _sweep(axis, figure, [member for _, member in members], label, shade)
                empty = False
            else:
                curve = curves_over_iterations([row for _, row in members], figure.y, evidence)
                if curve is not None:
                    axis.plot(curve[0], curve[1], label=label, color=shade)
                    axis.fill_between(curve[0], curve[2], curve[3], color=shade, alpha=0.15, linewidth=0)
                    empty = False
        axis.set_title(title)
        axis.set_xlabel(figure.x if figure.draw == "sweep" else "iteration")
        if figure.draw == "iterations":
            axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_ylabel({"psnr": "PSNR (dB)", "psnr_all": "PSNR (dB), all images"}.get(figure.y, figure.y))
        if figure.log_x:
            _logarithmic(axis, lines, figure)
        if figure.log_y:
            axis.set_yscale("log")
        if any(label for label, _ in lines):
            axis.legend(fontsize=7)
    if empty:
        pyplot.close(drawn)
        return None
    return drawn


def _sweep(axis: Any, figure: Figure, cells: Sequence[Cell], label: str, colour: Any) -> None:
    ordered = sorted(cells, key=lambda cell: cell.where[figure.x])
    x = [cell.where[figure.x] for cell in ordered]
    y = np.array([cell.ours for cell in ordered])
    around = [y - [cell.low for cell in ordered], np.array([cell.high for cell in ordered]) - y]
    axis.errorbar(x, y, yerr=np.maximum(around, 0), label=label, color=colour, marker="o", markersize=4, capsize=3)


def _logarithmic(axis: Any, lines: Sequence[tuple[str, Sequence[tuple[Where, Any]]]], figure: Figure) -> None:
    swept = {where.get(figure.x) for _, members in lines for where, _ in members}
    values = sorted(value for value in swept if isinstance(value, int | float))
    # Linear around 0: a sweep may begin with no noise at all.
    axis.set_xscale("symlog", linthresh=min((abs(value) for value in values if value), default=1.0))
    if 0 < len(values) <= TICKS:  # else powers of ten, of which there may be one, or none
        axis.set_xticks(values, [f"{value:g}" for value in values])
        axis.minorticks_off()


def curves_over_iterations(rows: Sequence[Row], y: str, evidence: Evidence) -> Curve | None:
    """The median over victims and images at every iteration. A victim that ended early stays where it ended."""
    curves: list[tuple[list[int], list[float]]] = []
    for row in rows:
        if y == "loss":
            losses = evidence.losses(row)
            curves.append(([step for step, _ in losses], [value for _, value in losses]))
        else:
            taken = evidence.psnrs(row)
            for image in range(len(taken[0][1]) if taken else 0):
                curves.append(([step for step, _ in taken], [float(values[image]) for _, values in taken]))
    curves = [curve for curve in curves if curve[0]]
    if not curves:
        return None
    steps = sorted({step for found, _ in curves for step in found})
    held = [np.asarray(v)[np.clip(np.searchsorted(s, steps, side="right") - 1, 0, None)] for s, v in curves]
    low, middle, high = np.quantile(np.stack(held), [0.25, 0.5, 0.75], axis=0)
    return steps, middle.tolist(), low.tolist(), high.tolist()


def _pictures(figure: Figure, attacked: Sequence[tuple[Where, Row]], evidence: Evidence) -> Any:
    strips = []
    for title, members in split(attacked, figure.facets):
        # The first four rows are read and no more: where each holds one picture, these are what is shown.
        kept = [evidence.images(row.artifacts.get("images", "")) for _, row in members[:STRIPS]]
        ways = [shown for shown in kept if "snapshots" in shown]
        every = [(title, shown, image) for shown in ways for image in range(shown["snapshots"].shape[1])]
        strips += every[:STRIPS]
    if not strips:
        return None
    from matplotlib import pyplot

    wide = max(len(shown["snapshot_steps"]) for _, shown, _ in strips) + 1
    drawn, axis = pyplot.subplots(figsize=(wide * SIDE, len(strips)))
    # One picture for a strip: with axes for every snapshot drawing took longer than the attack.
    for line, (title, shown, image) in enumerate(strips):
        steps = [f"{int(step)}" for step in shown["snapshot_steps"]]
        pictures = [*shown["snapshots"][:, image], *[None] * (wide - 1 - len(steps)), shown["original"][image]]
        bottom, top = line + 1, line + 1 - SIDE
        axis.imshow(side_by_side(pictures), extent=(0, wide, bottom, top), aspect="auto", interpolation="nearest")
        for column, words in [*enumerate(steps), (wide - 1, "original")]:
            axis.text(column + 0.5, top, words, fontsize=6, ha="center", va="bottom")
        # Beside the strip: above it the words would run into the strip before.
        axis.text(-0.15, line + 1 - SIDE / 2, title, fontsize=6, ha="right", va="center")
    axis.set(xlim=(0, wide), ylim=(len(strips), 0))
    axis.set_axis_off()
    drawn.subplots_adjust(0, 0, 1, 1)
    return drawn
