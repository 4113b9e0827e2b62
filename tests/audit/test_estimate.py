"""What a run will cost is measured on a few steps, and measuring stops when it has taken long enough."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from small import SMALL

from fedleak.audit import estimate as module
from fedleak.audit.estimate import estimate
from fedleak.audit.plan import make_plan
from fedleak.audit.spec import make_spec

NOWHERE = Path("nowhere")


class Measured:
    """Counts federations and attacks that are really tried, and how long they are said to take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.clock, self.attacks, self.federations = 0.0, [], []  # type: ignore[var-annotated]
        self._seconds = seconds
        monkeypatch.setattr(module.time, "monotonic", lambda: self.clock)
        monkeypatch.setattr(module, "run_federation", self._simulated)
        monkeypatch.setattr(module, "run_trial", self._attacked)

    def _simulated(self, job: Any, *_: Any) -> None:
        self.federations.append(job.point.protocol.rounds)
        self.clock += self._seconds * job.point.protocol.rounds

    def _attacked(self, trial: Any, *_: Any) -> None:
        self.attacks.append((trial.choice.name, trial.choice.attack.steps))
        self.clock += self._seconds * trial.choice.attack.steps


def said(tables: dict[str, Any] = SMALL, jobs: int = 1, device: str = "cpu") -> str:
    plan = make_plan(make_spec(tables), NOWHERE, device)
    return estimate(plan.federations, plan.trials, NOWHERE, device, jobs)


def test_every_kind_is_measured_once_and_scaled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured(monkeypatch, 0.5)
    # Two arms of 2 rounds, and 2 arms x 2 attacks x 3 steps x 2 starts, half a second each: 2 + 12 seconds.
    assert said() == "about 14 s, at most 14 s"
    assert sorted(measured.attacks) == [("dlg", 1), ("dlg", 3), ("dlm_plus", 1), ("dlm_plus", 3)]
    assert said(jobs=2) == "about 7 s, at most 7 s"


def test_where_measuring_takes_long_one_attack_stands_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured(monkeypatch, 30.0)
    # A single unit of each sort of work: the second kind of attack is taken to be like the first.
    assert said() == "about 14 min, at most 14 min; not every kind of work was measured"
    assert measured.attacks == [("dlm_plus", 1)]


def test_a_gpus_memory_is_given_back_to_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    Measured(monkeypatch, 0.5)
    given_back: list[str] = []
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: given_back.append("all"))
    assert said(device="cpu") == said(device="cuda")
    assert given_back == ["all"]


def test_a_real_run_is_measured() -> None:
    assert re.fullmatch(r"about \d+ \w+, at most \d+ \w+(; not .*)?", said())
