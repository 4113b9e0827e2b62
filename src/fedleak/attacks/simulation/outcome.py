"""From searched dummies to a finding: the start that counts, its epochs matched and averaged, and how it went."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedleak.attacks.simulation.clients import Client
from fedleak.attacks.simulation.contradictions import unreached
from fedleak.attacks.simulation.layout import Layout
from fedleak.attacks.simulation.matching import epoch_order, in_order
from fedleak.attacks.simulation.search import Found
from fedleak.attacks.simulation.settings import SimulationSettings
from fedleak.types import Reconstruction, RecoveredImages, Round, Setup, Status, Trace

__all__ = ["Outcome", "assemble", "kept_steps"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """One client after the search: all its starts, and for each the length of the simulated update as a multiple of
    the client's, where its steps were simulated."""

    client: Client
    layout: Layout
    starts: Sequence[Found]
    reach: Sequence[float] = ()

    @property
    def best(self) -> Found:
        """The start with the smallest objective, of those that came to a finite one."""
        return min(self.starts, key=lambda one: one.objective)

    @property
    def remark(self) -> str:
        """What speaks against the disclosed values: before the search, or what it came to."""
        if self.client.remark or not self.reach:
            return self.client.remark
        return unreached(self.client.task, self.reach[self.starts.index(self.best)])


@dataclass(frozen=True, eq=False)
class _Images:
    """Pixels of every epoch (sets, images, C, H, W) in one order, and the labels in that order."""

    by_epoch: Tensor
    order: Tensor
    labels: Tensor


def assemble(
    setup: Setup,
    round_: Round,
    settings: SimulationSettings,
    found: Mapping[int, Outcome],
    refused: Mapping[int, str],
    notes: dict[str, Any],
) -> Reconstruction:
    victims: list[RecoveredImages] = []
    pictures: list[Tensor] = []
    shown = _shown(settings, found)
    for at, message in enumerate(round_.received):
        if at not in found:
            nothing = torch.zeros(0, *setup.input_shape)
            reason = refused.get(at, "")
            victims.append(RecoveredImages(message.sender, round_.index, nothing, None, math.nan, "refused", reason))
            pictures.append(torch.zeros(len(shown), 0, *setup.input_shape))
            continue
        outcome = found[at]
        best, remark = outcome.best, outcome.remark
        images = _in_one_order(setup, settings, outcome)
        final = _combined(settings, images.by_epoch)
        status: Status = "ok" if math.isfinite(best.objective) else "diverged"
        reason = remark if status == "ok" else f"no start gave a finite objective ({len(outcome.starts)} tried)"
        victims.append(
            RecoveredImages(message.sender, round_.index, final, images.labels, best.objective, status, reason)
        )
        pictures.append(_pictures(setup, settings, outcome, images, final, shown))
    senders = {at: message.sender for at, message in enumerate(round_.received) if at in found}
    notes["restarts"] = settings.restarts
    notes["ended"] = {
        who: ["finished" if one.finished else "stopped at the last finite iterate" for one in found[at].starts]
        for at, who in senders.items()
    }
    if settings.per_epoch:
        notes["snapshots"] = "one per epoch, and last their mean"
    trace = Trace((), torch.zeros(len(victims), 0), shown, tuple(pictures) if shown else ())
    if found:
        steps = tuple(range(settings.steps + 1))
        objective = torch.full((len(victims), len(steps)), math.nan)
        for at, outcome in found.items():
            objective[at] = outcome.best.trace
        trace = Trace(steps, objective, shown, tuple(pictures) if shown else ())
    return Reconstruction(tuple(victims), trace, notes)


def _in_one_order(setup: Setup, settings: SimulationSettings, outcome: Outcome) -> _Images:
    point = outcome.best.point
    pixels = setup.normalisation.undo(point)
    labels = outcome.client.labels[: outcome.layout.sets]
    order = torch.arange(pixels.shape[1]).repeat(len(pixels), 1)
    if settings.match_epochs and len(pixels) > 1:
        order = epoch_order(pixels, labels if settings.match_labels else None)
    return _Images(in_order(pixels, order), order, labels[0].clone())


def _combined(settings: SimulationSettings, by_epoch: Tensor) -> Tensor:
    return by_epoch.mean(dim=0) if settings.average else by_epoch[0]


def _shown(settings: SimulationSettings, found: Mapping[int, Outcome]) -> tuple[int, ...]:
    """Steps of which pictures are kept; with `per_epoch`, the epochs and, after the last, their mean."""
    if not found:
        return ()
    if settings.per_epoch:
        return tuple(range(max(outcome.layout.sets for outcome in found.values()) + 1))
    return (*sorted(kept_steps(settings.steps, settings.snapshots)), settings.steps) if settings.snapshots else ()


def kept_steps(steps: int, snapshots: int) -> frozenset[int]:
    """The steps before the last of which a picture is kept: log-spaced, from the first on."""
    if snapshots < 2:
        return frozenset()
    return frozenset(round(steps ** (at / (snapshots - 1))) - 1 for at in range(snapshots - 1)) - {steps}


def _pictures(
    setup: Setup,
    settings: SimulationSettings,
    outcome: Outcome,
    images: _Images,
    final: Tensor,
    shown: Sequence[int],
) -> Tensor:
    if settings.per_epoch:
        # A client with fewer epochs than another shows its mean in the places that are left.
        rest = len(shown) - len(images.by_epoch)
        return torch.cat([images.by_epoch.cpu(), final.cpu().expand(rest, *final.shape)])
    kept = outcome.best.kept
    taken = []
    for step in shown:
        if step in kept:
            taken.append(_combined(settings, in_order(setup.normalisation.undo(kept[step]), images.order)))
        else:
            taken.append(final.cpu())
    return torch.stack(taken) if taken else final.new_zeros(0, *final.shape)
