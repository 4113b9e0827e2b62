"""`fedleak attack`: one attack on a recorded transcript, with or without the truth to judge it by.

Without the truth nothing is scored. Instead the attack runs from a second start, and twice more on noise of the same
size, and a row says under `baselines` what that shows, one number per picture unless it is said otherwise:
`other_start` has `agreement` (dB between the picture and its counterpart from the other start) and `believed` (1 or 0,
see fedleak.audit.confidence); `noise_update` has `objective` (one number: what the attack is left with on an update
that holds no picture) and `agreement` (one number: the best there). `artifacts` names the same as `confidence` (JSON).

What the attack noted on its way (it trained the server's model itself, the prior is another than the one asked for)
is said after the table and kept as the artifact `notes` (JSON).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedleak.audit.checks import Findings, build
from fedleak.audit.clock import Clock
from fedleak.audit.confidence import AGREED_DB, UNEXPLAINED, Confidence, compared, noise_instead
from fedleak.audit.device import choose_device, one_thread
from fedleak.audit.display import Display
from fedleak.audit.known import parse_known
from fedleak.audit.pictures import write_models, write_pictures
from fedleak.audit.readable import parse_shape, readable
from fedleak.audit.registry import load_code, lookup
from fedleak.audit.rows import Row
from fedleak.audit.store import RunFolder
from fedleak.audit.toml import assign, parse_assignment
from fedleak.audit.truths import load_truth
from fedleak.audit.victim_rows import victim_row
from fedleak.audit.work import attack_transcript
from fedleak.commands.forecast import Forecast
from fedleak.commands.output import print_json, rows_document, warn
from fedleak.commands.told import noted, tell
from fedleak.components import resolved
from fedleak.data import data_root
from fedleak.errors import RefusedError
from fedleak.files import digest, locked
from fedleak.metrics import DEFAULT_METRICS, Judged, default_threshold
from fedleak.metrics.class_facts import held_by_somebody
from fedleak.transcript import load_transcript
from fedleak.types import (
    Finding,
    Reconstruction,
    RecoveredCounts,
    RecoveredImages,
    Transcript,
    Truth,
)

__all__ = ["attack_command"]

METRICS = (*DEFAULT_METRICS, "lpips")


def attack_command(
    source: Path,
    name: str,
    *,
    changes: Sequence[str],
    model: str | None,
    allow_code: bool,
    batchnorm: str,
    input_shape: str | None,
    classes: int | None,
    known: Sequence[str],
    truth: Path | None,
    sure: bool,
    out: Path | None,
    seed: int,
    device: str,
    data: str | None,
    quiet: bool,
    as_json: bool,
) -> int:
    attack = _configured(name, changes)
    transcript = load_transcript(source)
    if model is None and _asks_for_network(attack, transcript):
        raise RefusedError(
            f"model={transcript.setup.model.name!r}: the recording names a network of its own; "
            "give it with --model module:factory --allow-code"
        )
    told = parse_known(known)
    said = {"model": model, "batchnorm": batchnorm, "input_shape": input_shape, "classes": classes, "known": told}
    transcript = readable(
        transcript,
        None if model is None else load_code(model, allow_code),
        batchnorm=batchnorm,
        input_shape=None if input_shape is None else parse_shape(input_shape),
        classes=classes,
        known=told,
    )
    private = None if truth is None else load_truth(truth, transcript.setup.public)
    targets = transcript.setup.disclosed.get("target_labels")
    if private is not None and "target_labels" in attack.needs and isinstance(targets, list) and targets:
        held_by_somebody(targets, private)
    sure = sure and private is None and attack.yields is Reconstruction
    identity = {"attack": name, **resolved(attack), "seed": seed, "transcript": _identity(source), "read as": said}
    trial = digest(identity)[:24]
    out = out or Path("runs") / f"attack-{trial[:12]}"
    if RunFolder(out).spec_file.exists():
        raise RefusedError(f"--out={out}: holds an audit, whose rows this would replace; give another folder")
    display, where_to_run = Display(quiet=quiet), choose_device(device)

    forecast = Forecast(4 if sure else 1, display.note)

    def run(seen: Transcript, start: int) -> tuple[Finding, tuple[str, ...]]:
        return attack_transcript(attack, name, seen, start, where_to_run, forecast.over(display.inner(None)))

    clock = Clock()
    with locked(out), one_thread(), display.stage(name, 1):
        finding, granted = run(transcript, seed)
        rows = _rows(trial, name, attack, transcript, finding, granted, private, seed, RunFolder(out), data)
        if sure:
            nothing = noise_instead(transcript, seed)
            found = [finding, run(transcript, seed + 1)[0]]
            empty = [run(nothing, start)[0] for start in (seed, seed + 1)]
            rows = _with_confidence(rows, compared(found, empty), RunFolder(out))  # type: ignore[arg-type]
        rows = clock.on(rows)
        RunFolder(out).write_rows(rows)
        files = [write_pictures(finding, out / "pictures"), write_models(finding, out / "models")]
    tell(rows, finding, files, out, judged=private is not None, sure=sure, as_json=as_json, quiet=quiet)
    nobody = bool(rows) and all(row.status == "refused" for row in rows)
    if nobody:
        warn(f"no client could be attacked: {rows[0].reason}")
    if as_json:
        print_json(rows_document(rows))
    return 2 if nobody else 0


def _configured(name: str, changes: Sequence[str]) -> Any:
    cls, found = lookup("attacks", name), Findings()
    given: dict[str, Any] = {}
    for text in changes:
        path, value = parse_assignment(text)
        try:
            given = assign(given, path, value)
        except (KeyError, IndexError, ValueError, TypeError):
            table = path.partition(".")[0]
            found.add(f"--set {path}", f"leads nowhere; give the whole table at once: --set '{table}={{...}}'")
    attack = build(cls, given, "", found)
    found.raise_if_any()
    return attack


def _asks_for_network(attack: Any, transcript: Transcript) -> bool:
    """Whether the attack needs a network that the recording only names: not where it imitates with one of its own, nor
    where it cannot read what was sent, which is what it is refused for then."""
    sent = transcript.rounds[0].received[:1] if len(transcript.rounds) else ()
    if any(not isinstance(message.payload, attack.reads) for message in sent):
        return False
    chosen = getattr(attack, "model", None)
    return ":" in (transcript.setup.model if chosen is None else chosen(transcript.setup)).name


def _identity(source: Path) -> str:
    return digest((source / "manifest.json").read_bytes())


def _rows(
    trial: str,
    name: str,
    attack: Any,
    transcript: Transcript,
    finding: Finding,
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
    victims: Sequence[Judged] = finding.victims
    notes = {} if not finding.notes else {"notes": folder.put_json(noted(finding))}
    for number, victim in enumerate(victims):
        threshold = default_threshold("recording", len(victim.inputs) if isinstance(victim, RecoveredImages) else 1)
        base = Row(trial=trial, where=where, scores={}, n=0, status=victim.status, threshold=threshold, granted=granted)
        base = replace(base, artifacts=notes)
        row = victim_row(base, finding, number, truth, METRICS, seed, folder, data_root(data))
        if isinstance(victim, RecoveredCounts) and victim.status == "ok":
            row = replace(row, artifacts={**row.artifacts, "counts": folder.put_json(victim.counts.tolist())})
        rows.append(row)
    if not rows:
        raise RefusedError(f"round={getattr(attack, 'round', 1)}: no client sent anything in the attacked round")
    return rows


def _with_confidence(rows: Sequence[Row], judged: Sequence[Confidence], folder: RunFolder) -> list[Row]:
    changed = []
    for row, one in zip(rows, judged, strict=True):
        if one.status != "ok":
            changed.append(row)
            continue
        believed = [float(sure) for sure in one.believed]
        baselines = {
            "other_start": {"agreement": list(one.agreement), "believed": believed},
            "noise_update": {"objective": _finite(one.null_objective), "agreement": _finite(one.null_agreement)},
        }
        rule = {"unexplained_below": UNEXPLAINED, "agreement_above_db": AGREED_DB}
        said = {"objective": row.objective, "unexplained": _finite(one.unexplained), **baselines, "believed_if": rule}
        artifacts = {**row.artifacts, "confidence": folder.put_json(said)}
        changed.append(replace(row, baselines={**row.baselines, **baselines}, artifacts=artifacts))
    return changed


def _finite(value: float) -> list[float]:
    return [value] if math.isfinite(value) else []
