"""Where a row comes from: versions, device, split, what the defense proves. No host name, no path."""

from __future__ import annotations

import contextlib
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

import fedleak
from fedleak.audit.plan import FederationJob
from fedleak.defenses import OneShot, Plan, chain
from fedleak.federation import FedSGD
from fedleak.types import Predictions, Transcript, Weights

__all__ = ["provenance", "versions"]

ABOUT_DATA = {
    "label_counts": "how often each client has each label",
    "unique_labels": "how many labels each client has",
    "batch_labels": "the labels of every batch",
    "target_labels": "which labels are private",
}
"""What a protocol can `disclose` that follows from the clients' own data: no noise stands before it."""


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "fedleak": fedleak.__version__}
    for package in ("torch", "numpy", "scipy", "safetensors", "pydantic"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def provenance(
    job: FederationJob, transcript: Transcript, device: str, notes: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    """What the report prints at its end, and what a reader needs to run a row again."""
    plan = _plan(job, transcript)
    guarantee = chain(*job.arm.defenses).guarantee(plan)
    epsilon, statement = guarantee.epsilon, guarantee.statement
    told = [fact for name, fact in ABOUT_DATA.items() if name in getattr(job.point.protocol, "disclose", ())]
    if guarantee.kind == "dp" and told:
        statement += f"; not covered: what the server is assumed to know besides ({', '.join(told)})"
    if guarantee.kind == "dp" and _twins_are_public(job):
        statement += "; not covered: the masked copies of private images in the public set"
    return {
        "versions": versions(),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else f"cpu ({platform.machine()})",
        "threads": 1,
        "precision": _precision(device),
        "federation": job.key,
        "rounds": plan.rounds,
        "split": _split(job.split),
        "guarantee": {
            "kind": guarantee.kind,
            "statement": statement,
            "epsilon": epsilon if epsilon is None or math.isfinite(epsilon) else None,
            "delta": guarantee.delta,
        },
        "notes": json.loads(json.dumps(dict(notes), default=str)),
        **more,
    }


def _twins_are_public(job: FederationJob) -> bool:
    """No noise stands before a copy that the public set holds of what clients train on."""
    public = getattr(getattr(job.point, "data", None), "public", None)
    return bool(public and public.of_people and public.domain in (None, "mask") and not public.drop_twins)


def _precision(device: str) -> str:
    """How products are rounded: torch's convolutions are not exact to float32 on a GPU unless they are told to be."""
    if not device.startswith("cuda"):
        return "float32"
    kinds = ("convolutions", torch.backends.cudnn.allow_tf32), ("products", torch.backends.cuda.matmul.allow_tf32)
    said = ", ".join(f"{kind} in {'tf32' if rounded else 'float32'}" for kind, rounded in kinds)
    return f"{said}; where an attack has a setting for it, that holds"


def _split(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest without the lists of examples: those are an artifact of their own."""
    kept = {key: value for key, value in manifest.items() if key not in ("clients", "test")}
    public = kept.get("public")
    if isinstance(public, Mapping):
        parts = [{key: value for key, value in part.items() if key != "index"} for part in public.get("parts", ())]
        kept["public"] = {**public, "parts": parts}
    return kept


def _plan(job: FederationJob, transcript: Transcript) -> Plan:
    """What a proof needs: how many rounds are released, and how many numbers a message holds."""
    protocol = job.point.protocol
    # A protocol of somebody else's may count its work in other words: then nothing is known about it.
    epochs = 1 if isinstance(protocol, FedSGD) else getattr(protocol, "epochs", None)
    plan = Plan(rounds=getattr(protocol, "rounds", max(1, len(transcript.rounds))), epochs=epochs)
    first = transcript.rounds[0] if len(transcript.rounds) else None
    broadcast = None if first is None else first.broadcast
    sent = first.received[0].payload if first is not None and first.received else None
    if isinstance(sent, Predictions):
        return replace(
            plan,
            rounds=1 if any(isinstance(defense, OneShot) for defense in job.arm.defenses) else plan.rounds,
            dimension=sent.values.numel(),
            predictions="probabilities" if sent.scale == "probabilities" else "unbounded",
            examples=len(sent.index),
        )
    if not isinstance(broadcast, Weights):
        return plan
    dimension = sum(value.numel() for value in broadcast.tensors.values())
    return replace(plan, dimension=dimension, buffers=bool(broadcast.buffers))
