"""The library in four functions: simulate, attack, judge, and run_audit for all of it at once.

recording = simulate(clients, test, model=Net, protocol="fedavg", examples=1)
finding = attack(recording.transcript, "dlm_plus")
scores = judge(finding, recording.truth)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from fedleak.audit.device import choose_device
from fedleak.audit.readable import readable
from fedleak.audit.registry import lookup
from fedleak.audit.rows import Row
from fedleak.audit.runner import run_audit as run_spec
from fedleak.audit.spec import make_spec, read_spec
from fedleak.audit.work import attack_transcript
from fedleak.components import configure
from fedleak.data import data_root
from fedleak.defenses import Defense, chain
from fedleak.errors import DataError, RefusedError
from fedleak.factories import name_of
from fedleak.federation import Problem
from fedleak.metrics import DEFAULT_METRICS, Judgement, default_threshold
from fedleak.metrics import judge as judge_one
from fedleak.report import build_report
from fedleak.seeding import Seeds
from fedleak.types import (
    Examples,
    Finding,
    ModelSpec,
    Normalisation,
    Predictions,
    Progress,
    PublicSet,
    Recording,
    RecoveredImages,
    Transcript,
    Truth,
    silent,
)

__all__ = ["attack", "judge", "run_audit", "simulate"]


def simulate(
    clients: Mapping[str, Examples],
    test: Examples,
    *,
    model: str | Callable[[], nn.Module],
    protocol: str = "fedavg",
    defenses: Sequence[Defense] = (),
    seed: int = 0,
    classes: int | None = None,
    normalisation: Normalisation | None = None,
    public: PublicSet | None = None,
    models: Mapping[str, str | Callable[[], nn.Module]] | None = None,
    device: str = "auto",
    progress: Progress = silent,
    **settings: Any,
) -> Recording:
    """Run a federation on your own data and network.

    `clients` maps a name to its examples (pixels in [0, 1], shaped (n, C, H, W), and integer labels); `model` is a
    name of `fedleak list models` or anything that makes an `nn.Module`; `settings` are the protocol's parameters
    (`fedleak show protocol fedavg`). In the logit protocols `public` is what server and clients share, and `models`
    says which clients have another network than `model`. What the server saw and what only you know come back apart.

    `classes` is the number of outputs; where it is not given all labels count, those of `public` only where the
    protocol trains on them.
    """
    if not clients:
        raise DataError("clients={}: a federation needs at least one client")
    run = configure(lookup("protocols", protocol), settings)
    if models and run.sends is not Predictions:
        raise RefusedError(
            f"models: clients of {protocol} train one network, whose weights they share; leave models out, or take a "
            "protocol that shares predictions (fedmd, fedgems, dsfl)"
        )
    labels = [part.labels for part in (*clients.values(), test)]
    if public is not None and public.labels is not None and getattr(run, "uses_public_labels", False):
        labels.append(public.labels)
    problem = Problem(
        clients=clients,
        test=test,
        model=_spec(model),
        input_shape=tuple(next(iter(clients.values())).inputs.shape[1:]),
        classes=classes or 1 + max(int(own.max()) for own in labels if len(own)),
        normalisation=normalisation or Normalisation(),
        public=public,
        targets=tuple(sorted({int(label) for part in clients.values() for label in part.labels.tolist()})),
        models={name: _spec(own) for name, own in (models or {}).items()},
    )
    recording: Recording = run(
        problem,
        chain(*defenses),
        Seeds(seed).under("federation"),
        progress=progress,
        device=choose_device(device),
    )
    return recording


def attack(
    transcript: Transcript,
    name: str,
    *,
    model: Callable[[], nn.Module] | None = None,
    batchnorm: Literal["batch", "running"] = "batch",
    input_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    known: Mapping[str, Any] | None = None,
    seed: int = 0,
    device: str = "auto",
    progress: Progress = silent,
    **parameters: Any,
) -> Finding:
    """Run an attack on what a server saw. It is told only what it needs of what the transcript discloses.

    `model` makes the network of a transcript that was loaded from disk and names one of your own. It is used as an
    attack can use it: without dropout, with BatchNorm in the mode that the clients used, frozen layers among the
    buffers, in float32. `input_shape` (C, H, W) and `classes` say what a recording leaves open about the pictures,
    `known` what it leaves open about the clients: {"batch_size": 8, "lr": 0.1}.
    """
    seen = readable(transcript, model, batchnorm=batchnorm, input_shape=input_shape, classes=classes, known=known)
    configured = configure(lookup("attacks", name), parameters)
    return attack_transcript(configured, name, seen, seed, choose_device(device), progress)[0]


def judge(
    finding: Finding,
    truth: Truth,
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    threshold: float | None = None,
    data: str | None = None,
    seed: int = 0,
) -> dict[str, Judgement]:
    """Hold what an attack found against the truth: client to scores, one number per private example (images, label
    counts), per private class (pictures of classes) or per test example (stolen models)."""
    found = {}
    for victim in finding.victims:
        if victim.status in ("ok", "diverged"):
            images = len(victim.inputs) if isinstance(victim, RecoveredImages) else 1
            limit = default_threshold("", images) if threshold is None else threshold
            rng = Seeds(seed).generator("judge", victim.round, victim.sender)
            found[victim.sender] = judge_one(victim, truth, metrics, limit, data_root(data), rng)
    return found


def run_audit(
    spec: Path | str | Mapping[str, Any] | None = None,
    *,
    out: Path | str = "runs/default",
    model: Callable[[], nn.Module] | None = None,
    data: str | None = None,
    device: str = "auto",
    jobs: int | None = None,
    executor: str = "local",
) -> list[Row]:
    """`fedleak audit` from Python: rows come back, the report is in the run folder.

    `spec` is a TOML file, the same tables as a dict, or None for the built-in audit; `model` replaces [model].
    """
    if isinstance(spec, Mapping):
        checked = make_spec(spec, model=model)
    else:
        checked = read_spec(None if spec is None else Path(spec), model=model)
    chosen = choose_device(device, executor)
    rows = run_spec(checked, Path(out), data_root=data_root(data), device=chosen, jobs=jobs, executor=executor)
    build_report(Path(out))
    return rows


def _spec(model: str | Callable[[], nn.Module]) -> ModelSpec:
    return ModelSpec(model) if isinstance(model, str) else ModelSpec(name_of(model), factory=model)
