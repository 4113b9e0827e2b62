"""From a finding to rows: the row of one victim, its pictures and its trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save as save_tensors

from fedleak.audit.rows import Row
from fedleak.audit.store import RunFolder
from fedleak.metrics import Judged, judge
from fedleak.seeding import Seeds
from fedleak.types import Finding, RecoveredClasses, RecoveredCounts, RecoveredImages, StolenModel, Truth

__all__ = ["victim_row"]


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


def _on_cpu(victim: Judged) -> Judged:
    """Where it is judged. Pictures of classes and copies of models stay: comparing all with all, and thousands of
    test pictures after every round, are work for the device they are on."""
    if not isinstance(victim, RecoveredImages):
        return victim
    labels = None if victim.labels is None else victim.labels.cpu()
    return replace(victim, inputs=victim.inputs.cpu(), labels=labels)
