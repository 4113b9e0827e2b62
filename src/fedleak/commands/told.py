"""What `fedleak attack` tells on the screen: a table of what was found, what stands beside it, what was noted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedleak.audit.confidence import AGREED_DB, UNEXPLAINED
from fedleak.audit.rows import Row
from fedleak.commands.output import say
from fedleak.types import Finding, RecoveredClasses, RecoveredCounts

__all__ = ["noted", "tell"]

SHOWN = ("psnr", "ssim", "recovered", "label_errors", "attack_accuracy", "fidelity", "victim_accuracy")
BELIEF = ("on noise", "agreement", "believed")
FEW = 8


def noted(finding: Finding) -> dict[str, Any]:
    """The notes of a finding as plain JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(finding.notes), default=str))
    return plain


def tell(
    rows: Sequence[Row],
    finding: Finding,
    files: Sequence[Path],
    out: Path,
    *,
    judged: bool,
    sure: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    if quiet and as_json:
        return
    from rich.table import Table

    table = Table(title="what was recovered from each client", title_justify="left")
    metrics = [m for m in SHOWN if any(m in row.scores for row in rows)]
    columns = ["client", "round", "status", "objective", *(BELIEF if sure else ()), *metrics]
    for column in columns:
        table.add_column(column)
    for row in rows:
        objective = "" if row.objective is None else f"{row.objective:.3g}"
        shown = [str(row.where.get("client")), str(row.where.get("round")), row.status, objective]
        if sure:
            start, noise = (row.baselines.get(name, {}) for name in ("other_start", "noise_update"))
            believed = ", ".join("yes" if one else "no" for one in start.get("believed", ()))
            shown += [
                _numbers(noise.get("objective", ())),
                _numbers(start.get("agreement", ())),
                believed or row.reason,
            ]
        for metric in metrics:
            shown.append(_numbers(row.scores.get(metric, ())) or row.reason)
        table.add_row(*shown)
    say(table, as_json)
    marked = [f"{row.where.get('client')}: {row.reason}" for row in rows if row.status == "ok" and row.reason]
    in_table = sure or bool(metrics)
    refused = [row.reason for row in rows if row.status != "ok" and row.reason and not in_table]
    for reason in dict.fromkeys([*refused, *marked[:FEW]]):
        say(reason, as_json)
    if len(marked) > FEW:
        say(f"and {len(marked) - FEW} more clients whose rows say so", as_json)
    for victim in finding.victims:
        if isinstance(victim, RecoveredCounts) and victim.status == "ok":
            say(f"{victim.sender}: images of each class {victim.counts.tolist()}", as_json)
    for line in [*_beside(rows), *_words(finding)]:
        say(line, as_json)
    found = [f"{folder.name}: {folder}" for folder in files if folder.is_dir() and any(folder.iterdir())]
    say("\n".join([*found, f"rows: {out / 'rows.jsonl'}"]), as_json)
    if sure:
        say(
            f"no truth was given, so there is no score. Believed is what leaves less than {UNEXPLAINED:g} of the "
            f"objective on noise and comes back from another start to within {AGREED_DB:g} dB",
            as_json,
        )
    elif not judged:
        say("no truth was given: what was found and objective values only, no score", as_json)


def _beside(rows: Sequence[Row]) -> list[str]:
    """What the attack believed before it saw a message, and what its pictures add to that."""
    lines = []
    for row in rows:
        for metric in ("attack_accuracy", "ssim"):
            ours, prior = row.scores.get(metric, ()), row.baselines.get("prior", {}).get(metric, ())
            if ours and len(prior) == len(ours):
                ours_mean, prior_mean = sum(ours) / len(ours), sum(prior) / len(prior)
                gain = ours_mean - prior_mean
                lines.append(f"{metric}: {ours_mean:.3g}, the prior alone {prior_mean:.3g}, gain over it {gain:+.3g}")
    return lines


def _words(finding: Finding) -> list[str]:
    """What the attack says in words about how it went, and whose pictures of classes were taken."""
    lines = [
        f"{key.replace('_', ' ')}: {said}" for key, said in sorted(noted(finding).items()) if isinstance(said, str)
    ]
    for victim in finding.victims:
        if isinstance(victim, RecoveredClasses) and victim.chosen:
            taken = Counter(victim.chosen)
            lines.append("pictures taken from: " + ", ".join(f"{name} {taken[name]}" for name in sorted(taken)))
    return lines


def _numbers(values: Sequence[float]) -> str:
    if len(values) > FEW:
        return f"mean {sum(values) / len(values):.3g} of {len(values)}"
    return ", ".join(f"{value:.3g}" for value in values)
