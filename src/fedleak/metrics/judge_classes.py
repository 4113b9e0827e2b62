"""Pictures of private classes: is the picture found for a label most similar to that label's private images?

Success is the test of pli.txt, section 4.1: SSIM(x_hat_j, x_j) > max(SSIM(x_hat_j, x_-j), SSIM(x_hat_j, x_p)) with
x_j the mean private image of label j, x_-j that of every other label, x_p the mean public image of any label.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedleak.errors import ShapeError
from fedleak.metrics.class_facts import (
    at_places,
    candidates_of,
    class_facts,
    held_by_somebody,
    holders,
    places_of,
)
from fedleak.metrics.judgement import Judgement, asked_of, examples_behind
from fedleak.metrics.pixel import usable
from fedleak.metrics.rivals import rivals_of
from fedleak.types import RecoveredClasses, Truth

__all__ = ["judge_classes"]


def judge_classes(found: RecoveredClasses, truth: Truth, metrics: Sequence[str], rng: torch.Generator) -> Judgement:
    """One number per private label: of the client's where the finding is about one client, else of all clients.

    A label that the attack did not name scores as nothing; where it named one twice, the first picture counts.
    Baselines: `prior`, what the attack believed before it saw a message; `other_client`, what the messages of a client
    yield that never held the label (drawn at random); `mean_image`, the mean of everybody else's images; `noise`.
    """
    asked = asked_of("classes", metrics)
    wanted = _wanted(found, truth)
    device = found.inputs.device  # 200 x 1200 pairs of photographs take about 15 seconds on one core, one on a GPU
    rivals = rivals_of(wanted, truth).on(device)
    shape = truth.private.inputs.shape[1:]
    if len(found.inputs) != len(found.labels):
        raise ShapeError(f"labels={len(found.labels)}, inputs={len(found.inputs)}: every picture needs its label")
    if len(found.inputs) and found.inputs.shape[1:] != shape:
        raise ShapeError(f"inputs={tuple(found.inputs.shape[1:])}: the private images are {tuple(shape)}")
    places = places_of(found.labels, wanted)
    pictures = at_places(found.inputs, places, shape)
    guesses = {"noise": torch.rand((1, *shape), generator=rng)}
    if (others := _others(truth)) is not None:
        guesses["mean_image"] = others[None]
    if found.prior is not None:
        guesses["prior"] = at_places(found.prior, places, shape)
    strangers = _strangers(found, truth, wanted, places, rng)
    if strangers is not None:
        guesses["other_client"] = strangers
    return Judgement(
        scores=rivals.scores(pictures.to(device), asked),
        baselines={name: rivals.scores(guess.to(device), asked) for name, guess in guesses.items()},
        reconstruction=torch.nan_to_num(pictures, nan=0.5, posinf=1.0, neginf=0.0),
        original=rivals.originals(),
        found=tuple(usable(pictures).tolist()),
        partner=tuple(places),
        more={} if found.prior is None else {"prior": guesses["prior"]},
        facts=class_facts(found, truth, wanted, places, rivals),
    )


def _wanted(found: RecoveredClasses, truth: Truth) -> Tensor:
    of_one_client = (found.round, found.sender) in truth.used or found.sender in truth.owners
    if of_one_client or len(truth.private) == 0:
        behind: Tensor = torch.unique(examples_behind(truth, found.round, found.sender).labels)
        return behind
    if found.chosen or found.prior is not None:  # labels that the attack was told, not ones that it inferred
        held_by_somebody(found.labels.tolist(), truth)
    everywhere: Tensor = torch.unique(truth.private.labels)
    return everywhere


def _others(truth: Truth) -> Tensor | None:
    """The mean of images that are not private: the public ones of the same domain, else the test set."""
    public = truth.public
    if public is not None and len(public):
        same = public.inputs if public.domains is None else public.inputs[public.domains == 0]
        if len(same):
            return same.mean(dim=0)
    return truth.test.inputs.mean(dim=0) if len(truth.test) else None


def _strangers(
    found: RecoveredClasses, truth: Truth, wanted: Tensor, places: Sequence[int], rng: torch.Generator
) -> Tensor | None:
    """For every label the candidate of a client that never held it."""
    if found.candidates is None or len(found.senders) < 2:
        return None
    held = holders(truth)
    named = []
    for label in wanted.tolist():
        never = [sender for sender in found.senders if sender not in held.get(label, set())]
        drawn = int(torch.randint(0, max(len(never), 1), (1,), generator=rng))
        named.append(never[drawn] if never else "")
    return candidates_of(found, named, places, truth.private.inputs.shape[1:])
