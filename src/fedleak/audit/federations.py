"""Simulate one federation of a run, and store what its server saw apart from what only the evaluator knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from fedleak.audit.device import one_thread, out_of_memory
from fedleak.audit.plan import FederationJob
from fedleak.audit.store import RunFolder
from fedleak.audit.truths import save_truth
from fedleak.data import load
from fedleak.defenses import chain
from fedleak.federation import Problem
from fedleak.files import replace_folder
from fedleak.seeding import Seeds
from fedleak.transcript import save_transcript
from fedleak.types import Progress, Recording, silent

__all__ = ["run_federation"]


def run_federation(job: FederationJob, run: Path, data_root: Path, device: str, progress: Progress = silent) -> str:
    """Simulate a federation and store transcript and truth, unless they are there. Gives what went wrong where the
    memory of the device did not suffice, else nothing."""
    folder = RunFolder(run)
    if folder.transcript(job.key).is_dir() and folder.truth(job.key).is_dir():
        return ""
    try:
        recording = _simulated(job, data_root, device, progress)
    except (RuntimeError, MemoryError) as problem:
        if said := out_of_memory(problem):
            return said
        raise
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
