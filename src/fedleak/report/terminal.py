"""The same summaries for a terminal: they fit into 80 columns, also where the output goes to a file."""

from __future__ import annotations

from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedleak.audit.rows import Row
from fedleak.metrics.intervals import Interval
from fedleak.report.levels import above_a_guess
from fedleak.report.sentences import amount
from fedleak.report.tables import Summary, summary, swept
from fedleak.report.words import between, defense_name, is_attackers, percent, setting

__all__ = ["summary_table"]


def summary_table(rows: Iterable[Row]) -> Table:
    """One line per protocol, defense and attack: what was recovered, how close, what a guess gets, what it costs."""
    found = summary(rows)
    keys = swept(found)
    named = [key for key in ("dataset", "model") if len({str(line.where.get(key)) for line in found}) > 1]
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    table.add_column("Defense", overflow="fold")
    table.add_column("Attack", overflow="fold", min_width=8)
    headings = _headings(found)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    place = arm = ""
    for line in found:
        here = " ".join([*(str(line.where.get(key)) for key in named), str(line.where.get("protocol"))])
        if extra := setting(line.where, [key for key in keys if not is_attackers(key)]):
            here = f"{here}, {extra}"
        if here != place:
            table.add_row(Text(here, style="bold"))
            place, arm = here, ""
        defense = defense_name(line.where)
        numbers = _numbers(line)
        shown = [numbers[heading] for heading in headings]
        table.add_row(Text(f" {defense}" if defense != arm else ""), Text(_attack(line, keys)), *shown)
        arm = defense
    return table


def _headings(found: Iterable[Summary]) -> list[str]:
    """Pixels, unless there are scores and none is of a picture; then how often a copy agrees with its victim."""
    scored = {name for line in found for name in line.scores}
    pixels = [name for name in ("PSNR", "SSIM") if name.lower() in scored or not scored]
    agrees = ["Fidelity"] if "fidelity" in scored and not pixels else []
    order = ("Recovered", "95 %", "PSNR", "Guess", "SSIM", "Fidelity", "Accuracy")
    return [name for name in order if name not in ("PSNR", "SSIM", "Fidelity") or name in (*pixels, *agrees)]


def _attack(line: Summary, keys: Iterable[str]) -> str:
    """The attack, below it what sets it apart, and how it ended where that is worth a word."""
    extra = setting(line.where, [key for key in keys if is_attackers(key)])
    ends = [f"{count} {status.replace('_', ' ')}" for status, count in line.status.items() if status != "ok"]
    return "\n".join([str(line.where.get("attack")), *_what(line), *([extra] if extra else []), *ends])


def _what(line: Summary) -> list[str]:
    """What the numbers count, where it is not images."""
    victim = line.scores.get("victim_accuracy")
    match line.kind:
        case "images":
            return []
        case "model":
            return [" copy" if victim is None else f" copy of {percent(victim.mean)}"]
        case "classes" | "counts":
            return [f" {line.things}"]


def _numbers(line: Summary) -> dict[str, Text]:
    share = line.success
    psnr, ssim, agrees = (line.scores.get(name) for name in ("psnr", "ssim", "fidelity"))
    leak = line.hits if line.kind == "images" else above_a_guess(line)
    return {
        "Recovered": Text(amount(line) if share is not None else "-", style="bold red" if leak else ""),
        "95 %": Text(_spread(share) if share is not None and not share.degenerate else "-"),
        "PSNR": Text(f"{psnr.mean:.1f}" if psnr is not None else "-"),
        "Guess": Text(_guess(line), style="dim"),
        "SSIM": Text(f"{ssim.mean:.2f}" if ssim is not None else "-"),
        "Fidelity": Text(percent(agrees.mean) if agrees is not None else "-"),
        "Accuracy": Text(percent(line.utility.mean) if line.utility is not None else "-"),
    }


def _spread(share: Interval) -> str:
    """Whole per cent, unless the interval is so narrow that its ends would read the same: 80 columns are few."""
    low, high = f"{100 * share.low:.0f}", f"{100 * share.high:.0f}"
    return f"{low} to {high} %" if low != high else between("recovered", share)


def _guess(line: Summary) -> str:
    """Of images the PSNR of a guess, of all else its share."""
    null = line.nulls.get("psnr") if line.kind == "images" else line.success_null
    if null is None:
        return "-"
    return f"{null.mean:.1f}" if line.kind == "images" else percent(null.mean)
