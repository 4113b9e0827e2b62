"""The inversion engine: all victims of one round at once, from a transcript to reconstructed images.

A victim is a message of the attacked round. Victims with the same number of images form a bucket and are searched as
one batch; a victim whose update cannot be used is refused with the reason, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedleak.attacks.inversion.distances import Distance, JointDistance
from fedleak.attacks.inversion.dummies import Dummies
from fedleak.attacks.inversion.labels import LabelRule
from fedleak.attacks.inversion.objective import GradientMatch
from fedleak.attacks.inversion.optim import RowOptimiser
from fedleak.attacks.inversion.priors import Prior
from fedleak.attacks.inversion.search import Attempt, Rules, search
from fedleak.attacks.inversion.tracing import candidate_steps, trace_of
from fedleak.attacks.inversion.victims import Victim, as_sent, attacked_round, network_of, victims_of
from fedleak.errors import RefusedError
from fedleak.learning.functional import loss_named
from fedleak.learning.precision import products_in
from fedleak.seeding import Seeds
from fedleak.types import Message, Progress, Reconstruction, RecoveredImages, Round, Setup, Transcript, Weights, silent

__all__ = ["Recipe", "invert"]


@dataclass(frozen=True)
class Recipe:
    """What distinguishes one inversion from another.

    `scale(setup, message)` multiplies the apparent gradient: DLG turns a difference of weights into a gradient with
    it; what is matched is `times` that. `count` names the knowledge that says how many images there are. `goal` is the
    squared distance, as a share of the squared norm of the update, at which a victim is solved. Of `candidates` starts
    that are drawn, with a standard deviation of `spread` in the images, the one with the smallest objective is begun
    with. With `clamp` pixels are moved into [0, 1] after every step. `known_labels` and `warm_starts` (pixels) are by
    sender; they win over what is read off or drawn.
    """

    distance: Distance | JointDistance
    optimiser: RowOptimiser[Any]
    rules: Rules
    scale: Callable[[Setup, Message], float] = as_sent
    times: float = 1.0
    count: str = "samples"
    labels: LabelRule = "joint"
    prior: Prior | None = None
    goal: float = 0.0
    spread: float = 1.0
    candidates: int = 1
    round: int = 1
    until: int | None = None
    snapshots: int = 0
    chunk: int = 64
    clamp: bool = False
    known_labels: Mapping[str, Tensor] | None = None
    warm_starts: Mapping[str, Tensor] | None = None


@dataclass(frozen=True, eq=False)
class _Found:
    """One victim after the search: its attempts in order and the one with the smallest objective."""

    dummies: Dummies
    attempts: list[Attempt]
    best: Attempt
    labels: Tensor


@products_in("float32")
def invert(seen: Transcript, recipe: Recipe, *, rng: torch.Generator, progress: Progress = silent) -> Reconstruction:
    """Reconstruct the images behind every message of the attacked round.

    Sees: the weights broadcast in that round, what each client sent, the loss, and the number of images behind it.
    Guarantees: float32 throughout. Rounded to TF32 the slopes of a search are wrong by tens of per cent.
    """
    setup, round_ = seen.setup, attacked_round(seen, recipe.round, recipe.until)
    seeds = Seeds(int(torch.randint(0, 2**62, (1,), generator=rng)))
    victims, refused = victims_of(
        setup,
        round_,
        scale=recipe.scale,
        count=recipe.count,
        rule=recipe.labels,
        rng=seeds.generator("labels"),
        times=recipe.times,
        labels=recipe.known_labels,
    )
    found: dict[int, _Found] = {}
    notes: dict[str, Any] = {"chunk": recipe.chunk, "evaluations": 0, "labels": recipe.labels}
    before, total = 0, len(victims) * recipe.rules.steps
    for images, fixed in sorted({(victim.images, victim.labels is not None) for victim in victims}):
        bucket = [v for v in victims if (v.images, v.labels is not None) == (images, fixed)]
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


def _search_bucket(
    setup: Setup,
    round_: Round,
    recipe: Recipe,
    bucket: Sequence[Victim],
    seeds: Seeds,
    notes: dict[str, Any],
    progress: Progress,
) -> dict[int, _Found]:
    """All victims with the same number of images, as one batch."""
    start = recipe.distance.start if isinstance(recipe.distance, JointDistance) else ()
    soft = bucket[0].labels is None
    dummies = Dummies(bucket[0].images, setup.input_shape, setup.classes, soft, recipe.labels == "raw", start)
    objective = _objective(setup, round_, recipe, dummies)
    if objective.fallback:
        notes["fallback"] = objective.fallback
    stacked = [torch.stack(parts) for parts in zip(*(victim.target for victim in bucket), strict=True)]
    # An update too large for its own square has no share to reach: it diverges, and is not solved for that.
    goals = (recipe.goal * recipe.distance.unit(stacked)).nan_to_num(nan=0.0, posinf=0.0).tolist()
    given = recipe.distance.prepare(stacked)
    like = given[0]
    if not soft:
        fixed = torch.stack([victim.labels for victim in bucket if victim.labels is not None]).to(like.device)
        given = (*given, F.one_hot(fixed, setup.classes).to(like.dtype))
    select = _Selection(given)

    def draw(number: int, attempt: int) -> Tensor:
        sender = bucket[number].message.sender
        warm = (recipe.warm_starts or {}).get(sender)
        starts = dummies.draw(seeds.generator(sender, attempt), recipe.candidates, recipe.spread).to(like)
        if warm is not None and warm.numel() == dummies.pixels and attempt == 0:
            starts = starts[:1]
            starts[0, : dummies.pixels] = setup.normalisation.apply(warm.to(like)).flatten()
        if len(starts) == 1:
            return starts[0]
        notes["evaluations"] += len(starts)
        values, _ = objective(starts, select(torch.full((len(starts),), number, device=like.device)))
        return starts[int(values.nan_to_num(nan=float("inf")).argmin())]

    attempts = search(
        lambda points, which: objective(points, select(which)),
        draw,
        goals,
        recipe.optimiser,
        recipe.rules,
        width=recipe.chunk,
        keep=candidate_steps(recipe.rules.steps) if recipe.snapshots else frozenset(),
        box=dummies.box(setup.normalisation, like) if recipe.clamp else None,
        progress=progress,
    )
    notes["chunk"] = min(notes["chunk"], objective.piece)
    notes["evaluations"] += sum(attempt.evaluations for tries in attempts for attempt in tries)
    if objective.uncaptured:
        notes["uncaptured"] = objective.uncaptured
    return {victim.at: _found(dummies, victim, tries) for victim, tries in zip(bucket, attempts, strict=True)}


def _found(dummies: Dummies, victim: Victim, attempts: list[Attempt]) -> _Found:
    best = min(attempts, key=lambda attempt: attempt.best)
    assert best.point is not None
    labels = dummies.logits(best.point[None])[0].argmax(dim=-1) if victim.labels is None else victim.labels
    return _Found(dummies, attempts, best, labels)


class _Selection:
    """What is given, for the victims of a batch. The batch changes rarely, and targets are the largest tensors there
    are; the same tensor of victims is recognised without a look at its values, for which the host would have to wait.
    """

    def __init__(self, given: Sequence[Tensor]) -> None:
        self.given = given
        self.which: Tensor | None = None
        self.key: tuple[int, ...] = ()
        self.parts: list[Tensor] = []

    def __call__(self, which: Tensor) -> list[Tensor]:
        if which is not self.which:
            key = tuple(which.tolist())
            if key != self.key:
                self.key, self.parts = key, [one[which] for one in self.given]
            self.which = which
        return self.parts


def _objective(setup: Setup, round_: Round, recipe: Recipe, dummies: Dummies) -> GradientMatch:
    broadcast = round_.broadcast
    assert isinstance(broadcast, Weights)  # apparent_gradient refused every victim otherwise
    return GradientMatch(
        network_of(setup, broadcast),
        broadcast.tensors,
        broadcast.buffers,
        loss_named(setup.loss),
        dummies,
        recipe.distance,
        recipe.chunk,
        recipe.prior,
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
    if found.best.best == float("inf"):
        why = f"no start gave a finite objective ({len(found.attempts)} tried)"
        return RecoveredImages(
            message.sender, round_.index, images, found.labels, float("inf"), status="diverged", reason=why
        )
    return RecoveredImages(message.sender, round_.index, images, found.labels, found.best.best)


def _part(progress: Progress, before: int, total: int) -> Progress:
    """Progress of one bucket as a part of the whole."""
    return lambda done, of: progress(before + done, total)
