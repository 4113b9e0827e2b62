"""All clients of one round at once: from a transcript to reconstructed images by simulated training.

Clients that agree in number of samples, batch size, epochs and learning rate form a bucket and are searched as one
batch, every start a row of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedleak.attacks.inversion.distances import UnitDifference, squared_norm
from fedleak.attacks.inversion.victims import network_of
from fedleak.attacks.simulation.clients import Client, clients_of
from fedleak.attacks.simulation.contradictions import SEARCHED
from fedleak.attacks.simulation.counts import ClientAt, LabelEstimator
from fedleak.attacks.simulation.invariants import InvariantPrior, random_kernel
from fedleak.attacks.simulation.layout import Layout, layout_of
from fedleak.attacks.simulation.outcome import Outcome, assemble, kept_steps
from fedleak.attacks.simulation.search import Evaluate, Schedule, search
from fedleak.attacks.simulation.settings import SimulationSettings
from fedleak.attacks.simulation.terms import LayeredL2, OutOfRange, Smoothness, layer_weights
from fedleak.attacks.simulation.unroll import Simulation
from fedleak.errors import RefusedError
from fedleak.learning.functional import loss_named
from fedleak.seeding import Seeds
from fedleak.types import Progress, Reconstruction, Setup, Transcript, Weights, silent

__all__ = ["reconstruct"]

OF_THE_PRIOR = ("lambda_inv", "g", "inv_norm")
"""Settings that no other method than "prior" looks at."""


def reconstruct(
    seen: Transcript, settings: SimulationSettings, *, rng: torch.Generator, progress: Progress = silent
) -> Reconstruction:
    """Reconstruct the images behind every message of the attacked round."""
    setup, round_ = seen.setup, seen.round(settings.round)
    seeds = Seeds(int(torch.randint(0, 2**62, (1,), generator=rng)))
    broadcast = round_.broadcast

    @cache
    def estimator() -> LabelEstimator:
        if not isinstance(broadcast, Weights):
            raise RefusedError(f"round {round_.index}: no weights were broadcast, and labels are read off against them")
        client_at: ClientAt = "paper" if settings.preset == "paper" else "released"
        return LabelEstimator(setup, broadcast, seeds.generator("labels"), settings.dummies, client_at)

    clients, refused = clients_of(setup, round_, settings.labels, settings.order(), seeds, estimator)
    unused = () if settings.method == "prior" else OF_THE_PRIOR
    chosen = settings.chosen(setup.input_shape[0]).items()
    notes: dict[str, Any] = {
        "preset": settings.preset,
        "method": settings.method,
        "labels": settings.labels,
        "label_order": settings.order(),
        "hyperparameters": settings.column(setup.input_shape[0]),
        **{name: value for name, value in chosen if value is not None and name not in unused},
    }
    found: dict[int, Outcome] = {}
    before, total = 0, max(1, len(clients)) * (settings.restarts + 1) * settings.steps
    for shape in sorted({client.task.shape for client in clients}):
        bucket = [client for client in clients if client.task.shape == shape]
        assert isinstance(broadcast, Weights)  # apparent_gradient refused every client otherwise
        try:
            found.update(
                _Bucket(setup, broadcast, settings, bucket, seeds).search(notes, _part(progress, before, total))
            )
        except RefusedError as reason:
            refused.update({client.task.at: str(reason) for client in bucket})
        before += len(bucket) * (settings.restarts + 1) * settings.steps
    return assemble(setup, round_, settings, found, refused, notes)


@dataclass(eq=False)
class _Bucket:
    """Clients with tasks of one shape."""

    setup: Setup
    broadcast: Weights
    settings: SimulationSettings
    clients: Sequence[Client]
    seeds: Seeds

    def __post_init__(self) -> None:
        like = next(iter(self.broadcast.tensors.values()))
        settings, task = self.settings, self.clients[0].task
        self.chosen = settings.chosen(self.setup.input_shape[0])
        self.starts = settings.restarts + 1
        self.layout: Layout = layout_of(task, settings.method, settings.epoch_dummies)
        self.labels = torch.stack([client.labels for client in self.clients]).to(like.device)
        names = list(self.broadcast.tensors)
        # Both as multiples of the sum of the client's gradients; dividing it by U divides a squared distance by U^2.
        squared = (self.layout.scale / (task.steps if settings.matched == "mean" else 1.0)) ** 2
        share = 1.0 / self.layout.dummy_batches if settings.per_batch else 1.0
        self.distance: LayeredL2 | UnitDifference = (
            UnitDifference(factor=0.5 * share)
            if settings.distance == "cosine"
            else LayeredL2(layer_weights(names, settings.layer_decay), squared * share)
        )
        updates = [[client.task.update[name] / self.layout.scale for client in self.clients] for name in names]
        stacked = [torch.stack(one) for one in updates]
        self.length = squared_norm(stacked).sqrt()
        self.given = self.distance.prepare(stacked)
        # By row: how long the simulated update is in the end, as a multiple of the client's.
        self.reach = self.length.new_full((len(self.clients) * self.starts,), math.nan)
        self.at_the_end = False
        network = network_of(self.setup, self.broadcast)
        network.module.load_state_dict(dict(self.broadcast.buffers), strict=False)
        self.simulation = Simulation(
            network,
            loss_named(self.setup.loss),
            self.broadcast.tensors,
            lr=self.layout.lr,
            steps_per_epoch=self.layout.batches,
            checkpoint=settings.checkpoint,
            precision=settings.precision,
        )
        self.terms = self._terms()
        self.prior = self._prior(like)

    def search(self, notes: dict[str, Any], progress: Progress) -> dict[int, Outcome]:
        settings = self.settings
        like = next(iter(self.broadcast.tensors.values()))
        points = torch.stack([self._draw(client, start) for client in self.clients for start in range(self.starts)])
        box = None
        if settings.project:
            ends = torch.zeros(2, *self.setup.input_shape)
            ends[1] = 1
            low, high = self.setup.normalisation.apply(ends).to(like)
            box = (low, high)
        schedule = Schedule(
            self.chosen["lr"], settings.steps, settings.schedule, self.chosen["decay"], self.chosen["decay_every"]
        )
        found, width = search(
            self._evaluation,
            points.to(like),
            schedule,
            width=settings.chunk,
            box=box,
            keep=frozenset() if settings.per_epoch else kept_steps(settings.steps, settings.snapshots),
            progress=progress,
        )
        notes["chunk"] = min(width, notes.get("chunk", width))
        for name in ("engine", "fallback", "unfused", "uncaptured", "piece"):
            if said := getattr(self.simulation, name, ""):
                notes[name] = said
        outcomes = {}
        for number, client in enumerate(self.clients):
            mine = slice(number * self.starts, (number + 1) * self.starts)
            # The other methods do not run the client's steps, and a short search is still under way: that these end
            # elsewhere says nothing of the disclosed values.
            telling = settings.method in ("prior", "no_prior", "shared") and settings.steps >= SEARCHED
            reach = self.reach[mine].tolist() if telling else ()
            outcomes[client.task.at] = Outcome(client, self.layout, found[mine], reach)
        return outcomes

    def _draw(self, client: Client, start: int) -> Tensor:
        """The first set of dummies is drawn first: one set for all epochs is the first of those for each."""
        shape = (self.layout.sets, self.layout.samples, *self.setup.input_shape)
        drawn = torch.randn(shape, generator=self.seeds.generator("dummies", client.task.message.sender, start))
        if self.settings.same_start:
            drawn = drawn[:1].expand(shape)
        return self.settings.spread * drawn

    def _terms(self) -> list[Smoothness | OutOfRange]:
        terms: list[Smoothness | OutOfRange] = []
        if self.chosen["tv"] > 0:
            terms.append(Smoothness(self.chosen["tv"], self.settings.tv_norm))
        if self.chosen["clip"] > 0:
            terms.append(OutOfRange(self.chosen["clip"], self.setup.normalisation))
        return terms

    def _prior(self, like: Tensor) -> InvariantPrior | None:
        if self.settings.method != "prior" or self.chosen["lambda_inv"] == 0 or self.layout.sets == 1:
            return None
        kernels: list[Tensor] = []
        if self.chosen["g"].startswith("conv"):
            channels = self.setup.input_shape[0]
            senders = [client.task.message.sender for client in self.clients]
            kernels = [random_kernel(channels, self.seeds.generator("prior", who)).to(like) for who in senders]
        return InvariantPrior(self.chosen["g"], self.chosen["inv_norm"], kernels, self.labels)

    def _evaluation(self, rows: Sequence[int]) -> Evaluate:
        """The objective of these rows; a row is a client and a start."""
        owners = [row // self.starts for row in rows]
        at = torch.tensor(owners, device=self.labels.device)
        given = tuple(one[at] for one in self.given)
        beside = (*given, self.length[at], torch.tensor(rows, device=self.labels.device))
        labels = self.layout.labels(self.labels[at])
        mask = self.layout.mask(len(rows), given[0])
        prior = None if self.prior is None else self.prior.take(owners)

        def evaluate(points: Tensor, step: int) -> tuple[Tensor, Tensor]:
            self.at_the_end = step == self.settings.steps
            values, slopes = self.simulation(self.layout.pack(points), labels, mask, self._measure, beside)
            weight = self._fac(step)
            values, slopes = weight * values, weight * self.layout.unpack(slopes)
            for term in self.terms:
                value, slope = term(points)
                values, slopes = values + value, slopes + slope
            if prior is not None:
                value, slope = prior(points)
                values = values + self.chosen["lambda_inv"] * value
                slopes = slopes.add(slope, alpha=self.chosen["lambda_inv"])
            return values, slopes

        return evaluate

    def _measure(self, update: dict[str, Tensor], given: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        *target, length, rows = given
        simulated = list(update.values())
        if self.at_the_end:
            self.reach[rows] = squared_norm(simulated).sqrt() / length
        values, slopes = self.distance(simulated, target)
        return values, dict(zip(update, slopes, strict=True))

    def _fac(self, step: int) -> float:
        start, end = self.chosen["fac_start"], self.chosen["fac_end"]
        share = min(step / self.settings.fac_steps, 1.0)
        return float(start * (end / start) ** share)


def _part(progress: Progress, before: int, total: int) -> Progress:
    return lambda done, of: progress(before + done, total)
