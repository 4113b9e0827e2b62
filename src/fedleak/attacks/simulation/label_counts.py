"""Label counts: how many examples of every class a client holds, from its weights after many local steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt, model_validator

from fedleak.attacks.knowledge import require
from fedleak.attacks.simulation.contradictions import contradiction
from fedleak.attacks.simulation.counts import ClientAt, CountRule, LabelEstimator
from fedleak.attacks.simulation.needs import ALWAYS, USES
from fedleak.attacks.simulation.tasks import task_of
from fedleak.components import RoundNumber, component, filled
from fedleak.errors import RefusedError
from fedleak.seeding import Seeds
from fedleak.types import LabelCounts, Progress, RecoveredCounts, Transcript, Weights, silent

__all__ = ["CountLabels"]


@component
class CountLabels:
    """Read the label counts off the last layer's update (section 4.5), by one of three rules.

    "interpolated" takes the network's statistics on the way from the broadcast to the sent weights, step by step, and
    averages the counts over the steps (the text's sum over E steps would count everything B times); "geng_server" and
    "geng_client" take them at one end. In the preset "released" the client's end is the last interpolant, 1 - 1/U, as
    in the authors' code; in "paper" it is the sent weights. Counts are rounded so that they sum to the samples.

    Sees: the broadcast weights and the weights each client sent back in one round, the network.
    Needs: number of samples, batch size, local epochs and learning rate. Uses momentum where it is disclosed.
    Guarantees: nothing is read but the transcript; the counts are whole and sum to the number of samples.
    """

    paper: ClassVar[str] = "Data Leakage in Federated Averaging, section 4.5; Geng et al. 2021"
    reads: ClassVar[tuple[type, ...]] = (Weights,)
    needs: ClassVar[frozenset[str]] = ALWAYS
    needs_from_weights: ClassVar[frozenset[str]] = frozenset()
    uses: ClassVar[frozenset[str]] = USES
    yields: ClassVar[type] = LabelCounts
    revision: ClassVar[int] = 2
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "released": {"client_at": "released"},
        "paper": {"client_at": "paper"},
    }

    preset: Literal["released", "paper"] = "released"
    rule: CountRule = Field(default="interpolated", description="where the network's statistics are taken")
    client_at: ClientAt = Field(
        default="released", description="geng_client: the last interpolant, or the sent weights"
    )
    dummies: PositiveInt = Field(default=3000, description="pictures of noise behind the statistics")
    round: RoundNumber = Field(default=1, description="the attacked round, from 1; negative counts from the end")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        return filled(cls.PRESETS, given, "released")

    def __call__(self, seen: Transcript, *, rng: torch.Generator, progress: Progress = silent) -> LabelCounts:
        require(self, seen)
        setup, round_ = seen.setup, seen.round(self.round)
        seeds = Seeds(int(torch.randint(0, 2**62, (1,), generator=rng)))
        estimator: LabelEstimator | None = None
        victims: list[RecoveredCounts] = []
        for at, message in enumerate(round_.received):
            try:
                task = task_of(setup, round_, at)
                if estimator is None:
                    assert isinstance(round_.broadcast, Weights)  # task_of refuses otherwise
                    noise = seeds.generator("labels")
                    estimator = LabelEstimator(setup, round_.broadcast, noise, self.dummies, self.client_at)
                assert isinstance(message.payload, Weights)
                counts = estimator.counts(message.payload, task.update, task.samples, task.steps, self.rule)
                remark = contradiction(setup, task, estimator.head)
                victims.append(RecoveredCounts(message.sender, round_.index, counts, reason=remark))
            except RefusedError as reason:
                nothing = torch.zeros(setup.classes, dtype=torch.long)
                victims.append(
                    RecoveredCounts(message.sender, round_.index, nothing, status="refused", reason=str(reason))
                )
            progress(at + 1, len(round_.received))
        return LabelCounts(tuple(victims), notes={"rule": self.rule, "preset": self.preset, "dummies": self.dummies})
