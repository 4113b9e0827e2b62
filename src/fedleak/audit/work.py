"""One trial, as a worker process does it: an attack on a federation's transcript, judged against the truth.

Here, and only here, transcript and truth are in one function: the attack is called with the transcript alone, before
the truth is read from disk.
"""

from __future__ import annotations

import math
import os
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors

from fedleak.audit.clock import Clock
from fedleak.audit.deadline import TimedOutError, within
from fedleak.audit.device import on_device, one_thread, out_of_memory
from fedleak.audit.plan import Trial
from fedleak.audit.provenance import provenance
from fedleak.audit.rows import Row
from fedleak.audit.store import RunFolder
from fedleak.audit.truths import load_truth
from fedleak.audit.victim_rows import victim_row
from fedleak.errors import DataError, FedleakError, TranscriptError
from fedleak.files import disk_is_full, keeping_in
from fedleak.metrics import utility
from fedleak.metrics.registry import NotAvailable
from fedleak.seeding import Seeds
from fedleak.transcript import load_transcript
from fedleak.types import Finding, Progress, PublicSet, Status, Transcript, Truth, Weights, silent

__all__ = ["attack_transcript", "run_trial", "without_result"]


def run_trial(trial: Trial, run: Path, data_root: Path, device: str, progress: Progress = silent) -> list[Row]:
    """All rows of one trial. Blobs are on disk before the rows are; a failure is a row that says so."""
    folder = RunFolder(run)
    clock = Clock()
    try:
        with one_thread():
            if trial.choice is None:
                rows = _utility_rows(trial, folder, device)
            else:
                rows = _attack_rows(trial, folder, data_root, device, within(trial.time_limit, progress))
    except TimedOutError as problem:
        rows = [without_result(trial, "timed_out", str(problem))]
    except TranscriptError as problem:
        rows = [without_result(trial, "failed", _unreadable(problem, trial, folder))]
    except FedleakError as problem:
        rows = [without_result(trial, "refused", str(problem))]
    except Exception as problem:
        if disk_is_full(problem):
            raise  # no fault of the trial: the run stops, and goes on from here when there is room
        if said := out_of_memory(problem):
            rows = [without_result(trial, "out_of_memory", said)]
        else:
            where = traceback.extract_tb(problem.__traceback__)[-1]
            text = problem.strerror if isinstance(problem, OSError) else problem  # its text would hold a path
            reason = f"{type(problem).__name__}: {text} ({Path(where.filename).name}:{where.lineno})"
            rows = [without_result(trial, "failed", reason)]
    rows = clock.on(rows)
    if all(row.status in ("ok", "diverged", "refused") for row in rows):
        folder.finish(trial.key, rows)  # what failed is tried again by the next run
    return rows


def _truth(trial: Trial, folder: RunFolder, public: PublicSet | None = None) -> Truth:
    """Damaged, it is no more the trial's doing than a damaged transcript is: both are one kind of error."""
    try:
        return load_truth(folder.truth(trial.federation.key), public)
    except DataError as problem:
        raise TranscriptError(str(problem)) from None


def _unreadable(problem: TranscriptError, trial: Trial, folder: RunFolder) -> str:
    """What of a federation's record is damaged, by its place in the run folder, and the way out."""
    said, key = str(problem).replace(f"{folder.path}{os.sep}", ""), trial.federation.key
    return f"{said}; delete transcripts/{key} and truths/{key} of this run and run again"


def attack_transcript(
    attack: Any, name: str, transcript: Transcript, seed: int, device: str, progress: Progress = silent
) -> tuple[Finding, tuple[str, ...]]:
    """Run an attack on what it is told: (finding, what was granted). No truth in sight."""
    from fedleak.attacks import require, used

    require(attack, transcript)
    first = transcript.rounds[0].received
    weights = bool(first) and isinstance(first[0].payload, Weights)
    needs = attack.needs | (attack.needs_from_weights if weights else frozenset())
    needs |= used(attack, transcript)
    told = on_device(transcript.granting(needs), device)
    finding = attack(told, rng=Seeds(seed).generator("attack", getattr(attack, "draws_as", name)), progress=progress)
    return finding, tuple(sorted(needs))


def _attack_rows(trial: Trial, folder: RunFolder, data_root: Path, device: str, progress: Progress) -> list[Row]:
    assert trial.choice is not None
    job, choice = trial.federation, trial.choice
    transcript = load_transcript(folder.transcript(job.key))
    if job.point.model.factory is not None:
        transcript = transcript.with_model(job.point.model.factory)
    with keeping_in(folder.kept):
        finding, granted = attack_transcript(choice.attack, choice.name, transcript, job.seed, device, progress)
    truth = _truth(trial, folder, transcript.setup.public)
    source = folder.put_json(provenance(job, transcript, device, finding.notes))
    base = Row(
        trial=trial.key,
        where=trial.where(),
        scores={},
        n=0,
        status="ok",
        threshold=trial.threshold,
        granted=granted,
        artifacts={"provenance": source},
    )
    rows = [
        victim_row(base, finding, number, truth, trial.metrics, job.seed, folder, data_root)
        for number in range(len(finding.victims))
    ]
    return rows or [without_result(trial, "refused", "the attacked round holds no message: no client took part")]


def _utility_rows(trial: Trial, folder: RunFolder, device: str) -> list[Row]:
    """Test accuracy of the federation's final model, one number per test example, and how sure its models are."""
    truth = _truth(trial, folder)
    transcript = load_transcript(folder.transcript(trial.federation.key))
    source = provenance(
        trial.federation,
        transcript,
        device,
        {},
        utility_by_round=[value for value in truth.utility if math.isfinite(value)],
    )
    correct = utility(truth)
    stored = {"provenance": folder.put_json(source), "split": folder.put_json(dict(trial.federation.split))}
    if truth.entropies:
        plain = {name: value.detach().cpu().contiguous().clone() for name, value in truth.entropies.items()}
        stored["entropies"] = folder.put(save_tensors(plain))
    base = Row(trial=trial.key, where=trial.where(), scores={}, n=0, status="ok", artifacts=stored)
    if isinstance(correct, NotAvailable):
        return [replace(base, status="refused", reason=correct.reason)]
    return [replace(base, scores={"utility": correct}, n=len(correct))]


def without_result(trial: Trial, status: Status, reason: str) -> Row:
    return Row(
        trial=trial.key, where=trial.where(), scores={}, n=0, status=status, reason=reason, threshold=trial.threshold
    )
