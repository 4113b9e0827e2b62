"""What a run will cost, measured before it starts: a few steps of each kind of work, timed and scaled up."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedleak.audit.plan import FederationJob, Trial
from fedleak.audit.work import run_federation, run_trial
from fedleak.components import configure, resolved

__all__ = ["estimate"]

PROBE_STEPS = 2


def _changed(part: Any, **values: Any) -> Any:
    """A component with other values, as far as it has such fields."""
    known = {field.name for field in dataclasses.fields(part)}
    return configure(type(part), {**resolved(part), **{k: v for k, v in values.items() if k in known}})


def _short(job: FederationJob) -> FederationJob:
    point = dataclasses.replace(job.point, protocol=_changed(job.point.protocol, rounds=1, attacked_round=1))
    return dataclasses.replace(job, key=f"probe-{job.key}", point=point)


def estimate(
    federations: Sequence[FederationJob], trials: Sequence[Trial], data_root: Path, device: str, jobs: int
) -> str:
    """'at most about ...': an upper bound, because attacks stop when they have converged."""
    seconds, attacked = 0.0, [trial for trial in trials if trial.choice is not None]
    with TemporaryDirectory() as scratch:
        run = Path(scratch)
        rounds_of: dict[str, float] = {}
        for job in federations:
            kind = f"{job.point.protocol_name} {job.point.where}"
            if kind not in rounds_of:
                clock = time.monotonic()
                run_federation(_short(job), run, data_root, device)
                rounds_of[kind] = (time.monotonic() - clock) / 1
            seconds += rounds_of[kind] * getattr(job.point.protocol, "rounds", 1)
        steps_of: dict[str, float] = {}
        for trial in attacked:
            choice = trial.choice
            assert choice is not None
            steps = getattr(choice.attack, "steps", 1) * (1 + getattr(choice.attack, "restarts", 0))
            kind = f"{choice.name} {trial.federation.point.protocol_name} {trial.federation.point.where}"
            if kind not in steps_of:
                job = _short(trial.federation)
                run_federation(job, run, data_root, device)
                short = _changed(choice.attack, steps=PROBE_STEPS, restarts=0, round=1)
                probe = dataclasses.replace(choice, attack=short)
                clock = time.monotonic()
                run_trial(dataclasses.replace(trial, federation=job, choice=probe), run, data_root, device)
                steps_of[kind] = (time.monotonic() - clock) / PROBE_STEPS
            seconds += steps_of[kind] * steps
    return f"at most about {_duration(seconds / max(jobs, 1))}; attacks stop early where they converge or cannot"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
