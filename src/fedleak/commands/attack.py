"""`fedleak attack`: one attack on a recorded transcript, with or without the truth to judge it by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedleak.audit.checks import Findings, build
from fedleak.audit.device import choose_device
from fedleak.audit.display import Display
from fedleak.audit.pictures import write_pictures
from fedleak.audit.registry import load_code, lookup
from fedleak.audit.rows import Row
from fedleak.audit.store import RunFolder
from fedleak.audit.toml import assign, parse_assignment
from fedleak.audit.truths import load_truth
from fedleak.audit.work import attack_transcript, one_thread, victim_row
from fedleak.commands.output import print_json, rows_document, say
from fedleak.components import resolved
from fedleak.data import data_root
from fedleak.errors import RefusedError
from fedleak.files import digest, locked
from fedleak.metrics import default_threshold
from fedleak.transcript import load_transcript
from fedleak.types import Reconstruction, Transcript, Truth

__all__ = ["attack_command"]

METRICS = ("psnr", "ssim", "mse", "lpips", "recovered", "label_errors")


def attack_command(
    source: Path,
    name: str,
    *,
    changes: Sequence[str],
    model: str | None,
    allow_code: bool,
    truth: Path | None,
    out: Path | None,
    seed: int,
    device: str,
    data: str | None,
    quiet: bool,
    as_json: bool,
) -> int:
    attack = _configured(name, changes)
    transcript = load_transcript(source)
    if model is not None:
        transcript = transcript.with_model(load_code(model, allow_code))
    elif ":" in transcript.setup.model.name:
        raise RefusedError(
            f"model={transcript.setup.model.name!r}: the recording names a network of its own; "
            "give it with --model module:factory --allow-code"
        )
    known = None if truth is None else load_truth(truth)
    trial = digest({"attack": name, **resolved(attack), "seed": seed, "transcript": _identity(source)})[:24]
    out = out or Path("runs") / f"attack-{trial[:12]}"
    display, where_to_run = Display(quiet=quiet), choose_device(device)
    with locked(out), one_thread(), display.stage(name, 1):
        finding, granted = attack_transcript(attack, name, transcript, seed, where_to_run, display.inner(None))
        rows = _rows(trial, name, attack, transcript, finding, granted, known, seed, RunFolder(out), data)
        RunFolder(out).write_rows(rows)
        pictures = write_pictures(finding, out / "pictures")
    if as_json:
        print_json(rows_document(rows))
    _tell(rows, pictures, out, judged=known is not None, as_json=as_json, quiet=quiet)
    return 0


def _configured(name: str, changes: Sequence[str]) -> Any:
    cls, found = lookup("attacks", name), Findings()
    given: dict[str, Any] = {}
    for text in changes:
        path, value = parse_assignment(text)
        given = assign(given, path, value)
    attack = build(cls, given, "", found)
    found.raise_if_any()
    return attack


def _identity(source: Path) -> str:
    return digest((source / "manifest.json").read_bytes())


def _rows(
    trial: str,
    name: str,
    attack: Any,
    transcript: Transcript,
    finding: Reconstruction,
    granted: tuple[str, ...],
    truth: Truth | None,
    seed: int,
    folder: RunFolder,
    data: str | None,
) -> list[Row]:
    preset = getattr(attack, "preset", None)
    where = {
        "dataset": "recording",
        "model": transcript.setup.model.name,
        "protocol": "recording",
        "defense": "unknown",
        "attack": name,
        **({} if preset is None else {"preset": preset}),
        "seed": seed,
    }
    rows = []
    for number, victim in enumerate(finding.victims):
        threshold = default_threshold("recording", len(victim.inputs))
        base = Row(trial=trial, where=where, scores={}, n=0, status=victim.status, threshold=threshold, granted=granted)
        rows.append(victim_row(base, finding, number, truth, METRICS, seed, folder, data_root(data)))
    if not rows:
        raise RefusedError(f"round={getattr(attack, 'round', 1)}: no client sent anything in the attacked round")
    return rows


def _tell(rows: Sequence[Row], pictures: Path, out: Path, *, judged: bool, as_json: bool, quiet: bool) -> None:
    if quiet and as_json:
        return
    from rich.table import Table

    table = Table(title="what was recovered from each client", title_justify="left")
    columns = ["client", "round", "status", "objective", *(["psnr", "ssim", "recovered"] if judged else [])]
    for column in columns:
        table.add_column(column)
    for row in rows:
        objective = "" if row.objective is None else f"{row.objective:.3g}"
        shown = [str(row.where.get("client")), str(row.where.get("round")), row.status, objective]
        for metric in columns[4:]:
            values = row.scores.get(metric, [])
            shown.append(", ".join(f"{value:.3g}" for value in values) or row.reason)
        table.add_row(*shown)
    say(table, as_json)
    say(f"pictures: {pictures}\nrows: {out / 'rows.jsonl'}", as_json)
    if not judged:
        say("no truth was given: pictures and objective values only, no score", as_json)
