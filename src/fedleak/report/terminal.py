"""The same summaries for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from fedleak.audit.rows import Row
from fedleak.report.tables import Summary, summary, swept
from fedleak.report.words import between, cases, metric_unit, percent, setting

__all__ = ["summary_table"]


def summary_table(rows: Iterable[Row]) -> Table:
    """One line per protocol, defense and attack: what was recovered, how close, what a guess gets, what it costs."""
    found = summary(rows)
    keys = swept(found)
    named = [key for key in ("dataset", "model", "protocol") if key == "protocol" or _several(found, key)]
    table = Table(title="What the attacks recovered", title_justify="left", header_style="bold", pad_edge=False)
    for key in named:
        table.add_column(key.capitalize())
    table.add_column("Defense", overflow="fold")
    table.add_column("Attack", overflow="fold")
    for heading in ("Recovered", "95 %", "PSNR dB", "Null dB", "SSIM", "Accuracy"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("Ended", overflow="fold")
    before: list[str] = []
    for line in found:
        where = [str(line.where.get(key)) for key in named]
        extra = setting(line.where, keys)
        attack = f"{line.where.get('attack')} ({extra})" if extra else str(line.where.get("attack"))
        if before and where != before:
            table.add_section()
        shown = where if where != before else ["" for _ in where]
        before = where
        cells = [*shown, str(line.where.get("defense") or "none"), attack]
        table.add_row(*(Text(cell) for cell in cells), *_numbers(line), Text(_ended(line)))
    return table


def _several(found: Iterable[Summary], key: str) -> bool:
    return len({str(line.where.get(key)) for line in found}) > 1


def _numbers(line: Summary) -> list[Text]:
    share = line.recovered
    psnr, ssim, null = line.scores.get("psnr"), line.scores.get("ssim"), line.nulls.get("psnr")
    style = "bold red" if line.recovered_images else ""
    return [
        Text(cases(line.recovered_images, line.images) if share is not None else "-", style=style),
        Text(between("recovered", share) if share is not None and not share.degenerate else "-"),
        Text(metric_unit("psnr", psnr.mean) if psnr is not None else "-"),
        Text(metric_unit("psnr", null.mean) if null is not None else "-", style="dim"),
        Text(metric_unit("ssim", ssim.mean) if ssim is not None else "-"),
        Text(percent(line.utility.mean) if line.utility is not None else "-"),
    ]


def _ended(line: Summary) -> str:
    if set(line.status) <= {"ok"}:
        return "ok"
    return ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in line.status.items())
