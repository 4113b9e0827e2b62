"""The two pieces of work a worker process does: simulate a federation, and judge one attack on its transcript.

Here, and only here, transcript and truth are in one function: the attack is called with the transcript alone, before
the truth is read from disk.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedleak.audit.deadline import TimedOutError, within
from fedleak.audit.device import on_device
from fedleak.audit.plan import FederationJob, Trial
from fedleak.audit.provenance import provenance
from fedleak.audit.rows import Row
from fedleak.audit.store import RunFolder
from fedleak.audit.truths import load_truth, save_truth
from fedleak.data import load
from fedleak.defenses import chain
from fedleak.errors import DataError, FedleakError, TranscriptError
from fedleak.federation import Problem
from fedleak.files import disk_is_full, keeping_in, replace_folder
from fedleak.learning.memory import ran_out_of_memory
from fedleak.metrics import Judged, judge, utility
from fedleak.metrics.registry import NotAvailable
from fedleak.seeding import Seeds
from fedleak.transcript import load_transcript, save_transcript
from fedleak.types import (
    Finding,
    Progress,
    PublicSet,
    Recording,
    RecoveredClasses,
    RecoveredCounts,
    RecoveredImages,
    Status,
    StolenModel,
    Transcript,
    Truth,
    Weights,
    silent,
)

__all__ = ["attack_transcript", "one_thread", "run_federation", "run_trial", "victim_row", "without_result"]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """The same bits whatever the number of cores: one torch thread per trial, put back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_federation(job: FederationJob, run: Path, data_root: Path, device: str, progress: Progress = silent) -> str:
    """Simulate a federation and store transcript and truth, unless they are there. Gives what went wrong where the
    memory of the device did not suffice, else nothing."""
    folder = RunFolder(run)
    if folder.transcript(job.key).is_dir() and folder.truth(job.key).is_dir():
        return ""
    try:
        recording = _simulated(job, data_root, device, progress)
    except RuntimeError as problem:
        if not ran_out_of_memory(problem):
            raise
        return str(problem).splitlines()[0]
    # The truth first: a transcript on disk means that the federation is finished.
    with replace_folder(folder.truth(job.key)) as temporary:
        save_truth(recording.truth, temporary)
    with replace_folder(folder.transcript(job.key)) as temporary:
        save_transcript(recording.transcript, temporary)
    return ""


def _simulated(job: FederationJob, data_root: Path, device: str, progress: Progress) -> Recording:
    seeds = Seeds(job.seed)
    with one_thread():
        data = load(job.point.data, data_root, seeds.under("data"))
        problem = Problem(
            clients=data.clients,
            test=data.test,
            model=job.point.model,
            input_shape=data.input_shape,
            classes=data.classes,
            normalisation=data.normalisation,
            public=data.public,
            targets=data.targets,
            twins=data.twins,
        )
        recording = job.point.protocol(
            problem, chain(*job.arm.defenses), seeds.under("federation"), progress=progress, device=device
        )
    return _told_whom(recording, data.public_labels)


def _told_whom(recording: Recording, labels: Tensor | None) -> Recording:
    """The evaluator knows whom the public images show, also where server and clients do not. (A defense may have
    dropped some of the images: then nobody does.)"""
    truth = recording.truth
    if labels is None or truth.public is None or len(truth.public) != len(labels):
        return recording
    return replace(recording, truth=replace(truth, public=replace(truth.public, labels=labels)))


def run_trial(trial: Trial, run: Path, data_root: Path, device: str, progress: Progress = silent) -> list[Row]:
    """All rows of one trial. Blobs are on disk before the rows are; a failure is a row that says so."""
    folder = RunFolder(run)
    started, clock = datetime.now(UTC), time.monotonic()
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
        if ran_out_of_memory(problem):
            rows = [without_result(trial, "out_of_memory", str(problem).splitlines()[0])]
        else:
            where = traceback.extract_tb(problem.__traceback__)[-1]
            said = problem.strerror if isinstance(problem, OSError) else problem  # its text would hold a path
            reason = f"{type(problem).__name__}: {said} ({Path(where.filename).name}:{where.lineno})"
            rows = [without_result(trial, "failed", reason)]
    finished = datetime.now(UTC)
    seconds = round(time.monotonic() - clock, 3)
    start, end = started.isoformat(timespec="seconds"), finished.isoformat(timespec="seconds")
    rows = [replace(row, seconds=seconds, started=start, finished=end) for row in rows]
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
    from fedleak.attacks import require

    require(attack, transcript)
    first = transcript.rounds[0].received
    weights = bool(first) and isinstance(first[0].payload, Weights)
    needs = attack.needs | (attack.needs_from_weights if weights else frozenset())
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


def victim_row(
    base: Row,
    finding: Finding,
    number: int,
    truth: Truth | None,
    metrics: Sequence[str],
    seed: int,
    folder: RunFolder,
    data_root: Path,
) -> Row:
    """The row of one victim: judged where the truth is known, else pictures and the attack's own objective."""
    victim = finding.victims[number]
    where = {**base.where, "client": victim.sender, "round": victim.round}
    row = replace(base, where=where, status=victim.status, reason=victim.reason)
    if victim.status not in ("ok", "diverged"):
        return row
    images = {"reconstruction": victim.inputs} if isinstance(victim, RecoveredImages | RecoveredClasses) else {}
    count = _count(victim)
    order = list(range(count)) if images else []
    stored = dict(base.artifacts)
    if truth is not None:
        rng = Seeds(seed).generator("judge", victim.round, victim.sender)
        verdict = judge(_on_cpu(victim), truth, metrics, row.threshold or 0.0, data_root, rng)
        count = max((len(values) for values in verdict.scores.values()), default=len(verdict.original))
        if images:
            images = {"original": verdict.original, "reconstruction": verdict.reconstruction, **verdict.more}
        # Snapshots arranged like the originals, so that a strip ends in the picture beside its original.
        order = list(verdict.partner) if min(verdict.partner, default=0) >= 0 else []
        row = replace(row, scores=verdict.scores, baselines=verdict.baselines, unavailable=verdict.unavailable)
        if verdict.facts:
            stored["facts"] = folder.put_json(verdict.facts)
    elif isinstance(victim, RecoveredClasses) and victim.chosen:
        stored["facts"] = folder.put_json({"labels": victim.labels.tolist(), "chosen_client": list(victim.chosen)})
    if order and finding.trace.snapshot_steps and number < len(finding.trace.snapshots):
        images["snapshots"] = finding.trace.snapshots[number].detach().cpu()[:, order]
        images["snapshot_steps"] = torch.tensor(finding.trace.snapshot_steps)
    if images:
        plain = {name: value.detach().cpu().contiguous().clone() for name, value in images.items()}
        stored["images"] = folder.put(save_tensors(plain))
    curve = finding.trace.objective[number].tolist() if number < len(finding.trace.objective) else []
    trace = {"steps": list(finding.trace.steps), "objective": [v if math.isfinite(v) else None for v in curve]}
    stored["trace"] = folder.put_json(trace)
    objective = victim.objective if math.isfinite(victim.objective) else None
    return replace(row, n=count, objective=objective, artifacts=stored)


def _count(victim: Judged) -> int:
    """How many things were found, where nothing says how many there are."""
    match victim:
        case RecoveredImages(inputs=inputs) | RecoveredClasses(inputs=inputs):
            return len(inputs)
        case RecoveredCounts(counts=counts):
            return int(counts.sum())
        case StolenModel():
            return 1


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


def _on_cpu(victim: Judged) -> Judged:
    """Where it is judged. Pictures of classes and copies of models stay: comparing all with all, and thousands of
    test pictures after every round, are work for the device they are on."""
    if not isinstance(victim, RecoveredImages):
        return victim
    labels = None if victim.labels is None else victim.labels.cpu()
    return replace(victim, inputs=victim.inputs.cpu(), labels=labels)


def without_result(trial: Trial, status: Status, reason: str) -> Row:
    return Row(
        trial=trial.key, where=trial.where(), scores={}, n=0, status=status, reason=reason, threshold=trial.threshold
    )
