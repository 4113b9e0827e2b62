"""SME: one gradient at a surrogate model in place of all local steps (Zhu et al. 2023, Surrogate Model Extension)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Literal

import torch
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)
from torch import Tensor
from torch.func import grad, vmap

from fedleak.attacks.inversion.distances import UnitDifference
from fedleak.attacks.inversion.victims import network_of
from fedleak.attacks.knowledge import require
from fedleak.attacks.simulation.clients import Client, LabelSource, clients_of
from fedleak.attacks.simulation.counts import LabelEstimator
from fedleak.attacks.simulation.layout import layout_of
from fedleak.attacks.simulation.needs import USES, needs_with
from fedleak.attacks.simulation.outcome import Outcome, assemble, kept_steps
from fedleak.attacks.simulation.search import Evaluate, Found, Schedule, search
from fedleak.attacks.simulation.settings import SimulationSettings
from fedleak.attacks.simulation.terms import Smoothness
from fedleak.components import RoundNumber, component, filled
from fedleak.errors import RefusedError
from fedleak.learning.functional import Loss, Network, loss_named
from fedleak.seeding import Seeds
from fedleak.types import Progress, Reconstruction, Setup, Transcript, Weights, silent

__all__ = ["SME"]


@component
class SME:
    """Match the direction of the update with the gradient of all dummies at w_0 + a (w_T - w_0), a learnt in [0, 1].

    The local steps lie near a line from the broadcast to the sent weights; somewhere on it the gradient of all examples
    points where the whole update does. One gradient per step, however long the client trained.

    Sees: the broadcast weights and the weights each client sent back in one round, the network and its loss.
    Needs: number of samples; batch size, local epochs and learning rate, to read the labels off the update; with
        labels="known" the label counts. Momentum, where it is disclosed, makes the label counts right.
    Guarantees: nothing is read but the transcript; of several starts the one with the smallest objective counts.
    """

    paper: ClassVar[str] = "Zhu et al. 2023, Surrogate Model Extension (SME)"
    reads: ClassVar[tuple[type, ...]] = (Weights,)
    needs: ClassVar[frozenset[str]] = needs_with({"known": frozenset({"label_counts"})})
    needs_from_weights: ClassVar[frozenset[str]] = frozenset()
    uses: ClassVar[frozenset[str]] = USES
    yields: ClassVar[type] = Reconstruction
    revision: ClassVar[int] = 2
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "strong": {},
        "paper": {"lr": 1.0, "schedule": "constant", "tv": 0.01, "project": False, "surrogate_lr": 1e-3},
    }

    preset: Literal["strong", "paper"] = "strong"
    steps: PositiveInt = Field(default=1000, description="steps of Adam")
    restarts: NonNegativeInt = Field(default=0, description="further starts; the smallest objective decides")
    labels: Literal["interpolated", "geng_server", "geng_client", "known"] = Field(
        default="interpolated", description="read off the update by one of three rules, or known counts"
    )
    dummies: PositiveInt = Field(default=3000, description="pictures of noise behind the label counts")
    lr: PositiveFloat = Field(default=1.0, description="step length of Adam for the dummies")
    schedule: Literal["cosine", "constant"] = Field(default="cosine", description="how it falls")
    surrogate: float = Field(default=0.5, ge=0, le=1, description="a at the start: where between w_0 and w_T")
    surrogate_lr: NonNegativeFloat = Field(default=1e-3, description="step length for a; 0: it stays")
    tv: NonNegativeFloat = Field(default=1e-4, description="weight of the total variation")
    project: bool = Field(default=True, description="move pixels into their range after every step")
    spread: PositiveFloat = Field(default=1.0, description="standard deviation of the first dummies")
    chunk: PositiveInt = Field(default=32, description="starts that are searched at once")
    snapshots: NonNegativeInt = Field(default=8, description="pictures kept of the way to the result")
    round: RoundNumber = Field(default=1, description="the attacked round, from 1; negative counts from the end")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        return filled(cls.PRESETS, given, "strong")

    def __call__(self, seen: Transcript, *, rng: torch.Generator, progress: Progress = silent) -> Reconstruction:
        require(self, seen)
        setup, round_ = seen.setup, seen.round(self.round)
        seeds = Seeds(int(torch.randint(0, 2**62, (1,), generator=rng)))
        broadcast = round_.broadcast

        @cache
        def estimator() -> LabelEstimator:
            assert isinstance(broadcast, Weights)  # task_of refuses otherwise
            return LabelEstimator(setup, broadcast, seeds.generator("labels"), self.dummies)

        source: LabelSource = self.labels
        clients, refused = clients_of(setup, round_, source, "sorted", seeds, estimator)
        notes: dict[str, Any] = {"preset": self.preset, "labels": self.labels, "surrogate": {}}
        found: dict[int, Outcome] = {}
        starts, before = self.restarts + 1, 0
        total = max(1, len(clients)) * starts * self.steps
        for samples in sorted({client.task.samples for client in clients}):
            bucket = [client for client in clients if client.task.samples == samples]
            assert isinstance(broadcast, Weights)
            part = _part(progress, before, total)
            try:
                found.update(self._search(setup, broadcast, bucket, seeds, notes, part))
            except RefusedError as reason:
                refused.update({client.task.at: str(reason) for client in bucket})
            before += len(bucket) * starts * self.steps
        shown = SimulationSettings(
            steps=self.steps, restarts=self.restarts, snapshots=self.snapshots, match_epochs=False
        )
        return assemble(setup, round_, shown, found, refused, notes)

    def _search(
        self,
        setup: Setup,
        broadcast: Weights,
        bucket: Sequence[Client],
        seeds: Seeds,
        notes: dict[str, Any],
        progress: Progress,
    ) -> dict[int, Outcome]:
        like = next(iter(broadcast.tensors.values()))
        starts, shape = self.restarts + 1, (1, bucket[0].task.samples, *setup.input_shape)
        objective = _Surrogate(self, setup, broadcast, bucket, shape)
        # Searched beside the pixels in a unit in which Adam's one step length moves it by `surrogate_lr`.
        unit = self.surrogate_lr / self.lr
        first = [
            torch.cat(
                [
                    self.spread
                    * torch.randn(shape, generator=seeds.generator("dummies", c.task.message.sender, s)).flatten(),
                    torch.tensor([self.surrogate / unit if unit else 0.0]),
                ]
            )
            for c in bucket
            for s in range(starts)
        ]
        low, high = (
            torch.cat([one.expand(shape).flatten(), torch.tensor([end / unit if unit else 0.0])]).to(like)
            for one, end in zip(self._range(setup), (0.0, 1.0), strict=True)
        )
        results, width = search(
            lambda rows: objective.of([row // starts for row in rows]),
            torch.stack(first).to(like),
            Schedule(self.lr, self.steps, self.schedule),
            width=self.chunk,
            box=(low, high),
            keep=kept_steps(self.steps, self.snapshots),
            progress=progress,
        )
        notes["chunk"] = min(width, notes.get("chunk", width))
        if objective.fallback:
            notes["fallback"] = objective.fallback
        outcomes: dict[int, Outcome] = {}
        for number, client in enumerate(bucket):
            mine = results[number * starts : (number + 1) * starts]
            layout = layout_of(client.task, "fedsgd")
            outcome = Outcome(client, layout, [_pictures_only(one, shape) for one in mine])
            best = min(mine, key=lambda one: one.objective)
            notes["surrogate"][client.task.message.sender] = float(best.point[-1]) * unit if unit else self.surrogate
            outcomes[client.task.at] = outcome
        return outcomes

    def _range(self, setup: Setup) -> tuple[Tensor, Tensor]:
        """Smallest and largest inputs, (C, H, W)."""
        ends = torch.zeros(2, *setup.input_shape)
        ends[1] = 1
        low, high = setup.normalisation.apply(ends)
        return (low, high) if self.project else (torch.full_like(low, -torch.inf), torch.full_like(high, torch.inf))


class _Surrogate:
    """The objective: half the squared distance of unit vectors, which is 1 - cosine, plus the total variation."""

    def __init__(
        self, settings: SME, setup: Setup, broadcast: Weights, bucket: Sequence[Client], shape: tuple[int, ...]
    ) -> None:
        self.settings, self.shape, self.fallback = settings, shape, ""
        self.network: Network = network_of(setup, broadcast)
        self.network.module.load_state_dict(dict(broadcast.buffers), strict=False)
        self.loss: Loss = loss_named(setup.loss)
        self.first = broadcast.tensors
        # broadcast - sent: the update, and minus the line to the sent weights.
        names = list(broadcast.tensors)
        self.update = [torch.stack([client.task.update[n] * client.task.step for client in bucket]) for n in names]
        self.target = UnitDifference().prepare(self.update)
        like = next(iter(broadcast.tensors.values()))
        self.labels = torch.stack([client.labels[0] for client in bucket]).to(like.device)
        self.smooth = Smoothness(settings.tv, "absolute")

    def of(self, owners: Sequence[int]) -> Evaluate:
        at = torch.tensor(owners, device=self.labels.device)
        given = ([one[at] for one in self.update], [one[at] for one in self.target], self.labels[at])
        unit = self.settings.surrogate_lr / self.settings.lr

        def value(point: Tensor, update: list[Tensor], target: list[Tensor], labels: Tensor) -> tuple[Tensor, Tensor]:
            where = point[-1] * unit if unit else torch.full_like(point[-1], self.settings.surrogate)
            weights = {n: w - where * d for (n, w), d in zip(self.first.items(), update, strict=True)}
            images = point[:-1].reshape(self.shape[1:])
            slope = grad(lambda w: self.loss(self.network(w, images), labels))(weights)
            norm = sum(g.square().sum() for g in slope.values())
            assert isinstance(norm, Tensor)
            scale = norm.clamp(min=1e-24).rsqrt()
            # The target is stored as minus the unit update.
            apart = sum((g * scale + t).square().sum() for g, t in zip(slope.values(), target, strict=True))
            assert isinstance(apart, Tensor)
            return 0.5 * apart, 0.5 * apart

        each = grad(value, has_aux=True)

        def evaluate(points: Tensor, step: int) -> tuple[Tensor, Tensor]:
            if not self.fallback:
                try:
                    slopes, values = vmap(each)(points, *given)
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError as error:  # a user's module that cannot be put under vmap
                    self.fallback = f"clients one by one ({str(error).splitlines()[0]})"
            if self.fallback:
                alone = [
                    each(p, [u[i] for u in given[0]], [t[i] for t in given[1]], given[2][i])
                    for i, p in enumerate(points)
                ]
                slopes, values = torch.stack([s for s, _ in alone]), torch.stack([v for _, v in alone])
            if self.settings.tv > 0:
                more, slope = self.smooth(points[:, :-1].reshape(len(points), *self.shape))
                values = values + more
                slopes[:, :-1] += slope.flatten(1)
            return values.detach(), slopes.detach()

        return evaluate


def _pictures_only(found: Found, shape: tuple[int, ...]) -> Found:
    kept = {step: one[:-1].reshape(shape) for step, one in found.kept.items()}
    return Found(found.point[:-1].reshape(shape), found.objective, found.trace, kept, found.finished)


def _part(progress: Progress, before: int, total: int) -> Progress:
    return lambda done, of: progress(before + done, total)
