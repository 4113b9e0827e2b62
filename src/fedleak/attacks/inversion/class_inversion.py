"""Class inversion: one picture per class that a client holds, refined over rounds (pli.txt, appendix F)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from fedleak.attacks.inversion.distances import UnitDifference
from fedleak.attacks.inversion.engine import Recipe, invert
from fedleak.attacks.inversion.labels import LabelRule
from fedleak.attacks.inversion.settings import InversionSettings
from fedleak.attacks.knowledge import require
from fedleak.components import RoundNumber, component
from fedleak.types import (
    ClassReconstruction,
    Gradients,
    Progress,
    Reconstruction,
    RecoveredClasses,
    RecoveredImages,
    Trace,
    Transcript,
    Weights,
    silent,
)

__all__ = ["ClassInversion"]


@component
class ClassInversion(InversionSettings):
    """Take a client's update for the gradient of one picture per class, and find these pictures (eq. S-15).

    From round 1 to round `round`: the dummies begin at random where a client is seen for the first time, and where the
    round before left them after that; so do the labels, which are read off a client's first update alone. Dummies are
    kept in the range of pixels. The paper goes on from the last dummies, this from those with the smallest objective.

    Sees: the weights broadcast in every round and what each client sent back, the network and its loss.
    Needs: the number of distinct labels behind a client's message.
    Guarantees: nothing is read but the transcript. A client is reported once, at the last round it took part in, with
    one picture per class; `labels` of the finding are those classes.
    """

    paper: ClassVar[str] = "Takahashi et al. 2023, Breaching FedMD, appendix F"
    reads: ClassVar[tuple[type, ...]] = (Gradients, Weights)
    needs: ClassVar[frozenset[str]] = frozenset({"unique_labels"})
    needs_from_weights: ClassVar[frozenset[str]] = frozenset()
    yields: ClassVar[type] = ClassReconstruction
    revision: ClassVar[int] = 3
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}}

    preset: Literal["paper"] = "paper"
    steps: PositiveInt = Field(default=150, description="iterations of Adam in every round")
    restarts: NonNegativeInt = Field(default=0, description="fresh starts in every round")
    optimizer: Literal["lbfgs", "adam"] = Field(default="adam", description="how the dummies are improved")
    lr: PositiveFloat = Field(default=0.3, description="step length of the optimiser")
    spread: PositiveFloat = Field(default=1.0, description="standard deviation of the first dummy images")
    candidates: PositiveInt = Field(default=1, description="starts drawn for every attempt")
    goal: NonNegativeFloat = Field(default=0.0, description="an objective that is small enough; 0: never")
    patience: NonNegativeInt = Field(default=0, description="iterations without progress; 0: never give up")
    labels: LabelRule = Field(default="yin", description="how labels are read off the last layer")
    tv: NonNegativeFloat = Field(default=0.01, description="weight of the total variation beside the distance")
    tv_norm: Literal["squared", "absolute"] = Field(default="absolute", description="differences of neighbours")
    clamp: bool = Field(default=True, description="move pixels into their range after every step of Adam")
    round: RoundNumber = Field(default=-1, description="the last attacked round, from 1; negative counts from the end")

    def __call__(self, seen: Transcript, *, rng: torch.Generator, progress: Progress = silent) -> ClassReconstruction:
        last = seen.round(self.round).index
        rounds = [number for number, one in enumerate(seen.rounds, 1) if one.index <= last]
        for number in rounds:
            require(replace(self, round=number), seen)
        recipe = self.make_recipe(UnitDifference(factor=0.5), count="unique_labels", snapshots=0)
        found: list[Reconstruction] = []
        known: list[dict[str, RecoveredImages]] = [{}]
        for number in rounds:
            following = _following(recipe, number, known[-1])
            found.append(invert(seen, following, rng=rng, progress=_part(progress, number, len(rounds))))
            fresh = {v.sender: v for v in found[-1].victims if v.status == "ok" or v.sender not in known[-1]}
            known.append({**known[-1], **fresh})
        notes = {**found[-1].notes, "rounds": len(rounds), "evaluations": sum(f.notes["evaluations"] for f in found)}
        victims = tuple(_classes(one, seen.setup.input_shape) for one in known[-1].values())
        return ClassReconstruction(victims, _joined(found, known[1:], self.snapshots), notes)


def _classes(found: RecoveredImages, shape: tuple[int, ...]) -> RecoveredClasses:
    labels = torch.zeros(0, dtype=torch.int64) if found.labels is None else found.labels
    pictures = found.inputs if len(found.inputs) else torch.zeros(0, *shape)
    return RecoveredClasses(
        found.sender,
        found.round,
        labels,
        pictures,
        objective=found.objective,
        status=found.status,
        reason=found.reason,
    )


def _following(recipe: Recipe, number: int, latest: Mapping[str, RecoveredImages]) -> Recipe:
    """The recipe of the next round: it begins where the rounds before have left every client."""
    usable = {sender: one for sender, one in latest.items() if one.status == "ok" and one.labels is not None}
    return replace(
        recipe,
        round=number,
        warm_starts={sender: one.inputs for sender, one in usable.items()},
        known_labels={sender: one.labels for sender, one in usable.items() if one.labels is not None},
    )


def _joined(found: Sequence[Reconstruction], known: Sequence[Mapping[str, RecoveredImages]], pictures: int) -> Trace:
    """The objective over all rounds, one after the other; where a client did not take part there is none (nan). One
    picture at the end of each of the last rounds; before a client was first seen, the first of it."""
    senders = list(known[-1])
    parts: list[Tensor] = []
    for one in found:
        part = torch.full((len(senders), len(one.trace.steps)), float("nan"))
        if one.trace.steps:
            for victim, values in zip(one.victims, one.trace.objective, strict=True):
                part[senders.index(victim.sender)] = values
        parts.append(part)
    objective = torch.cat(parts, dim=1)
    ends = torch.tensor([part.shape[1] for part in parts]).cumsum(0).tolist()
    shown = [at for at in range(len(known)) if ends[at] > 0][-pictures:] if pictures else []
    snapshots = tuple(_pictures([known[at].get(sender) for at in shown]) for sender in senders) if shown else ()
    return Trace(tuple(range(objective.shape[1])), objective, tuple(ends[at] - 1 for at in shown), snapshots)


def _pictures(ways: Sequence[RecoveredImages | None]) -> Tensor:
    last = ways[-1]
    assert last is not None  # who is known at all is known after the last round
    usable = [one.inputs if one is not None and one.inputs.shape == last.inputs.shape else None for one in ways]
    first = next(one for one in usable if one is not None)
    return torch.stack([first if one is None else one for one in usable])


def _part(progress: Progress, number: int, rounds: int) -> Progress:
    return lambda done, total: progress((number - 1) * total + done, rounds * total)
