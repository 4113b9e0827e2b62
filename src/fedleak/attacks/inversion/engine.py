"""The inversion engine: all victims of one round at once, from a transcript to reconstructed images.

A victim is a message of the attacked round. Victims with the same number of images form a bucket and are searched as
one batch; a victim whose update cannot be used is refused with the reason, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedleak.attacks.inversion.distances import Distance
from fedleak.attacks.inversion.objective import Dummies, GradientMatch
from fedleak.attacks.inversion.optim import RowOptimiser
from fedleak.attacks.inversion.search import Attempt, Rules, search
from fedleak.attacks.inversion.tracing import candidate_steps, trace_of
from fedleak.attacks.knowledge import known
from fedleak.errors import RefusedError
from fedleak.learning.functional import Network, loss_named
from fedleak.learning.updates import apparent_gradient
from fedleak.models import build_model
from fedleak.seeding import Seeds
from fedleak.types import (
    Message,
    Progress,
    Reconstruction,
    RecoveredImages,
    Round,
    Setup,
    Transcript,
    Weights,
    silent,
)

__all__ = ["Recipe", "as_sent", "invert"]


def as_sent(setup: Setup, message: Message) -> float:
    """The apparent gradient is matched as it is."""
    return 1.0


@dataclass(frozen=True)
class Recipe:
    """What distinguishes one inversion from another.

    `scale(setup, message)` multiplies the apparent gradient: DLG turns a difference of weights into a gradient with
    it. `goal` is the squared distance, as a share of the squared norm of the update, at which a victim is solved.
    Of `candidates` starts that are drawn, with a standard deviation of `spread` in the images, the one with the
    smallest objective is begun with.
    """

    distance: Distance
    optimiser: RowOptimiser[Any]
    rules: Rules
    scale: Callable[[Setup, Message], float] = as_sent
    goal: float = 0.0
    spread: float = 1.0
    candidates: int = 1
    round: int = 1
    snapshots: int = 0
    chunk: int = 64


@dataclass(frozen=True, eq=False)
class _Victim:
    at: int
    message: Message
    images: int
    target: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class _Found:
    """One victim after the search: its attempts in order and the one with the smallest objective."""

    dummies: Dummies
    attempts: list[Attempt]
    best: Attempt


def invert(seen: Transcript, recipe: Recipe, *, rng: torch.Generator, progress: Progress = silent) -> Reconstruction:
    """Reconstruct the images behind every message of the attacked round.

    Sees: the weights broadcast in that round, what each client sent, the loss, and the number of images behind it.
    """
    setup, round_ = seen.setup, seen.round(recipe.round)
    seeds = Seeds(int(torch.randint(0, 2**62, (1,), generator=rng)))
    victims, refused = _victims(setup, round_, recipe)
    found: dict[int, _Found] = {}
    notes: dict[str, Any] = {"chunk": recipe.chunk, "evaluations": 0}
    before, total = 0, len(victims) * recipe.rules.steps
    for images in sorted({victim.images for victim in victims}):
        bucket = [victim for victim in victims if victim.images == images]
        part = _part(progress, before, total)
        before += len(bucket) * recipe.rules.steps
        try:
            found.update(_search_bucket(setup, round_, recipe, bucket, seeds, notes, part))
        except RefusedError as reason:
            refused.update({victim.at: str(reason) for victim in bucket})
    messages = list(enumerate(round_.received))
    notes["restarts"] = {m.sender: len(found[at].attempts) - 1 for at, m in messages if at in found}
    notes["ended"] = {m.sender: [one.ending for one in found[at].attempts] for at, m in messages if at in found}
    recovered = tuple(_recovered(setup, round_, m, found.get(at), refused.get(at, "")) for at, m in messages)
    best = [(found[at].dummies, found[at].best) if at in found else None for at, _ in messages]
    return Reconstruction(recovered, trace_of(setup, best, recipe.snapshots), notes)


def _victims(setup: Setup, round_: Round, recipe: Recipe) -> tuple[list[_Victim], dict[int, str]]:
    victims, refused = [], {}
    for at, message in enumerate(round_.received):
        try:
            images = _images(setup, message)
            scale = recipe.scale(setup, message)
            target = tuple(value * scale for value in apparent_gradient(round_, message).values())
            victims.append(_Victim(at, message, images, target))
        except RefusedError as reason:
            refused[at] = str(reason)
    return victims, refused


def _images(setup: Setup, message: Message) -> int:
    samples = known(setup, message).get("samples")
    if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
        raise RefusedError(f"{message.sender}: samples={samples!r}: must be a whole number of images, at least 1")
    return samples


def _search_bucket(
    setup: Setup,
    round_: Round,
    recipe: Recipe,
    bucket: Sequence[_Victim],
    seeds: Seeds,
    notes: dict[str, Any],
    progress: Progress,
) -> dict[int, _Found]:
    """All victims with the same number of images, as one batch."""
    dummies = Dummies(bucket[0].images, setup.input_shape, setup.classes)
    objective = _objective(setup, round_, recipe, dummies)
    if objective.fallback:
        notes["fallback"] = objective.fallback
    stacked = [torch.stack(parts) for parts in zip(*(victim.target for victim in bucket), strict=True)]
    # An update too large for its own square has no share to reach: it diverges, and is not solved for that.
    goals = (recipe.goal * recipe.distance.unit(stacked)).nan_to_num(nan=0.0, posinf=0.0).tolist()
    targets = recipe.distance.prepare(stacked)
    like = targets[0]
    selected: dict[tuple[int, ...], list[Tensor]] = {}

    def evaluate(points: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        notes["evaluations"] += len(points)
        key = tuple(which.tolist())
        if key not in selected:  # the batch changes rarely, and its targets are the largest tensors of the search
            selected.clear()
            selected[key] = [target[which] for target in targets]
        return objective(points, selected[key])

    def draw(victim: int, number: int) -> Tensor:
        rng = seeds.generator(bucket[victim].message.sender, number)
        starts = dummies.draw(rng, recipe.candidates, recipe.spread).to(dtype=like.dtype, device=like.device)
        if len(starts) == 1:
            return starts[0]
        values, _ = evaluate(starts, torch.full((len(starts),), victim, device=like.device))
        return starts[int(values.nan_to_num(nan=float("inf")).argmin())]

    attempts = search(
        evaluate,
        draw,
        goals,
        recipe.optimiser,
        recipe.rules,
        width=recipe.chunk,
        keep=candidate_steps(recipe.rules.steps) if recipe.snapshots else frozenset(),
        progress=progress,
    )
    notes["chunk"] = min(notes["chunk"], objective.piece)
    return {
        victim.at: _Found(dummies, tries, min(tries, key=lambda attempt: attempt.best))
        for victim, tries in zip(bucket, attempts, strict=True)
    }


def _objective(setup: Setup, round_: Round, recipe: Recipe, dummies: Dummies) -> GradientMatch:
    broadcast = round_.broadcast
    assert isinstance(broadcast, Weights)  # apparent_gradient refused every victim otherwise
    device = next(iter(broadcast.tensors.values())).device
    module = build_model(setup.model, setup.input_shape, setup.classes).to(device)
    shapes = {name: value.shape for name, value in module.named_parameters()}
    if shapes != {name: value.shape for name, value in broadcast.tensors.items()}:
        raise RefusedError(
            f"model={setup.model.name!r}: its parameters are not those that were broadcast, in name or shape; "
            "give the network that the federation trained"
        )
    return GradientMatch(
        Network(module),
        broadcast.tensors,
        broadcast.buffers,
        loss_named(setup.loss),
        dummies,
        recipe.distance,
        recipe.chunk,
    )


def _recovered(setup: Setup, round_: Round, message: Message, found: _Found | None, reason: str) -> RecoveredImages:
    if found is None:
        nothing = torch.zeros(0, *setup.input_shape)
        return RecoveredImages(
            message.sender, round_.index, nothing, None, float("nan"), status="refused", reason=reason
        )
    point = found.best.point
    assert point is not None
    images = setup.normalisation.undo(found.dummies.inputs(point[None])[0])
    labels = found.dummies.logits(point[None])[0].argmax(dim=-1)
    if found.best.best == float("inf"):
        why = f"no start gave a finite objective ({len(found.attempts)} tried)"
        return RecoveredImages(
            message.sender, round_.index, images, labels, float("inf"), status="diverged", reason=why
        )
    return RecoveredImages(message.sender, round_.index, images, labels, found.best.best)


def _part(progress: Progress, before: int, total: int) -> Progress:
    """Progress of one bucket as a part of the whole."""
    return lambda done, of: progress(before + done, total)
