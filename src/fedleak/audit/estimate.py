"""What a run will cost, measured before it starts: a few steps of each kind of work, timed and scaled up."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fedleak.audit.federations import run_federation
from fedleak.audit.plan import FederationJob, Trial
from fedleak.audit.work import run_trial
from fedleak.components import configure, resolved
from fedleak.types import Predictions

__all__ = ["duration", "estimate"]


LONG = 4.0
"""Seconds after which a unit of work counts as long."""

ENOUGH = 20.0
"""Seconds of measuring after which no further kind of work is tried: on large federations the estimate would otherwise
take longer than many runs."""


BEFORE = ("transfer_epochs", "first_epochs")


def _changed(part: Any, **values: Any) -> Any:
    """A component with other values, as far as it has such fields."""
    known = {field.name for field in dataclasses.fields(part)}
    return configure(type(part), {**resolved(part), **{k: v for k, v in values.items() if k in known}})


def _short(job: FederationJob, rounds: int) -> FederationJob:
    # What comes once, before the first round or the first step, would hide what a round takes.
    once = {name: 0 for name in BEFORE if hasattr(job.point.protocol, name)}
    protocol = _changed(job.point.protocol, rounds=rounds, attacked_round=1, evaluate_every=rounds, **once)
    return replace(job, key=f"probe-{rounds}-{job.key}", point=replace(job.point, protocol=protocol))


def estimate(
    federations: Sequence[FederationJob], trials: Sequence[Trial], data_root: Path, device: str, jobs: int
) -> str:
    """'about ..., at most ...': the bound is every step of every start; about is what patience usually leaves of it.

    Kinds of work that there was no time to measure are taken to be like those that were, and the estimate says so.
    """
    about, most = 0.0, 0.0
    attacks = [trial for trial in trials if trial.choice is not None]
    with TemporaryDirectory() as scratch:
        probe = _Probe(Path(scratch), data_root, device)
        # One attack before the other federations: a run is mostly attacks.
        if attacks:
            probe.step_of(attacks[0])
        for job in federations:
            epochs = sum(getattr(job.point.protocol, name, 0) for name in BEFORE)
            # A round of the protocols that begin with epochs of their own is about two epochs.
            seconds = probe.round_of(job) * (getattr(job.point.protocol, "rounds", 1) + epochs / 2)
            about, most = about + seconds, most + seconds
        for trial in attacks:
            assert trial.choice is not None
            attack, step = trial.choice.attack, probe.step_of(trial)
            steps = getattr(attack, _unit(attack), 1) * _rounds_read(trial)
            starts = 1 + getattr(attack, "restarts", 0)
            patience = getattr(attack, "patience", 0)
            most += step * steps * starts
            # Measured: a start that converges or stagnates ends after three times its patience or so.
            about += step * (min(steps, 3 * patience) * min(starts, 2) if patience else steps * starts)
    if device != "cpu":
        torch.cuda.empty_cache()  # what measuring took of a GPU is for the workers to have
    guessed = "; not every kind of work was measured" if probe.guessed else ""
    return f"about {duration(about / jobs)}, at most {duration(most / jobs)}{guessed}"


def _unit(attack: Any) -> str:
    """The field that says how long an attack works: steps, or epochs where they are left to those."""
    return "steps" if getattr(attack, "steps", 0) or not hasattr(attack, "epochs") else "epochs"


def _rounds_read(trial: Trial) -> int:
    """An attack on predictions works through every round; one on an update looks at one of them."""
    protocol = trial.federation.point.protocol
    return getattr(protocol, "rounds", 1) if protocol.sends is Predictions else 1


class _Probe:
    """Times a round of each kind of federation and a step of each kind of attack, once, while there is time."""

    def __init__(self, scratch: Path, data_root: Path, device: str) -> None:
        self._run, self._data_root, self._device = scratch, data_root, device
        self._rounds: dict[str, float] = {}
        self._steps: dict[str, float] = {}
        self._started = time.monotonic()
        self.guessed = False

    def round_of(self, job: FederationJob) -> float:
        kind = f"{job.point.data.name} {job.point.protocol_name} {job.point.where}"
        return self._known(self._rounds, kind, lambda: self._slope(lambda rounds: self._simulate(job, rounds)))

    def step_of(self, trial: Trial) -> float:
        assert trial.choice is not None
        job = trial.federation
        kind = f"{job.point.data.name} {job.point.protocol_name} {job.point.where} {trial.choice.name}"

        def measured() -> float:
            self._simulate(job, 1)
            return self._slope(lambda steps: self._attack(trial, steps))

        return self._known(self._steps, kind, measured)

    def _known(self, known: dict[str, float], kind: str, measured: Callable[[], float]) -> float:
        """Measured now, or before, or where the time for that is over, the mean of what was."""
        if kind not in known:
            if known and time.monotonic() - self._started > ENOUGH:
                self.guessed = True
                return sum(known.values()) / len(known)
            known[kind] = measured()
        return known[kind]

    def _slope(self, work: Callable[[int], None]) -> float:
        """Seconds per unit, without what is spent once: three units less one, halved. Where one unit takes long, what
        is spent once hardly counts, and knowing it is not worth three more."""
        spent = []
        for units in (1, 3):
            clock = time.monotonic()
            work(units)
            spent.append(time.monotonic() - clock)
            if spent[0] > LONG:
                return spent[0]
        return max(spent[1] - spent[0], 0.0) / 2

    def _simulate(self, job: FederationJob, rounds: int) -> None:
        run_federation(_short(job, rounds), self._run, self._data_root, self._device)

    def _attack(self, trial: Trial, steps: int) -> None:
        assert trial.choice is not None
        attack = trial.choice.attack
        short = _changed(attack, **{_unit(attack): steps}, restarts=0, round=1, patience=0, prior_epochs=1)
        job, choice = _short(trial.federation, 1), replace(trial.choice, attack=short)
        run_trial(
            replace(trial, key=f"{trial.key}-{steps}", federation=job, choice=choice),
            self._run,
            self._data_root,
            self._device,
        )


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
