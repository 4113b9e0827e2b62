"""Pictures of private classes: is the picture found for a label most similar to that label's private images?

Success is the test of pli.txt, section 4.1: SSIM(x_hat_j, x_j) > max(SSIM(x_hat_j, x_-j), SSIM(x_hat_j, x_p)) with
x_j the mean private image of label j, x_-j that of every other label, x_p the mean public image of any label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedleak.errors import DataError, ShapeError
from fedleak.metrics.classes import class_means
from fedleak.metrics.judgement import Judgement, Scores, asked_of
from fedleak.metrics.pixel import usable
from fedleak.metrics.structure import ssim_pairs
from fedleak.types import Examples, RecoveredClasses, Truth

__all__ = ["judge_classes"]


@dataclass(frozen=True, eq=False)
class _Rivals:
    """The mean images that a picture is compared with: those of all private labels first, then the public ones."""

    wanted: Tensor
    labels: Tensor
    means: Tensor
    private: int

    def on(self, device: torch.device) -> _Rivals:
        return _Rivals(self.wanted.to(device), self.labels.to(device), self.means.to(device), self.private)

    def originals(self) -> Tensor:
        """The mean private image of every wanted label."""
        return self.means[torch.searchsorted(self.labels[: self.private], self.wanted)].cpu()

    def scores(self, pictures: Tensor, asked: Sequence[str]) -> Scores:
        """`pictures` has one for every wanted label, in order, or one for all of them; one that is not finite scores as
        nothing."""
        fine = usable(pictures).expand(len(self.wanted))
        seen = torch.nan_to_num(pictures, nan=0.5, posinf=1.0, neginf=0.0)
        alike = ssim_pairs(seen, self.means).expand(len(self.wanted), -1)
        same = self.labels[None] == self.wanted[:, None]
        own = same.clone()
        own[:, self.private :] = False
        mine = torch.where(own, alike, -2.0).amax(dim=1)
        known = {
            "ssim": torch.where(fine, mine.double(), 0.0),
            "attack_accuracy": ((mine > torch.where(own, -2.0, alike).amax(dim=1)) & fine).double(),
            "nearest_public": (same.gather(1, alike.argmax(dim=1, keepdim=True))[:, 0] & fine).double()
            * (alike.argmax(dim=1) >= self.private),
        }
        return {name: [float(value) for value in known[name].tolist()] for name in asked}


def judge_classes(found: RecoveredClasses, truth: Truth, metrics: Sequence[str], rng: torch.Generator) -> Judgement:
    """One number per private label: of the client's where the finding is about one client, else of all clients.

    A label that the attack did not name scores as nothing; where it named one twice, the first picture counts.
    Baselines: `prior`, what the attack believed before it saw a message; `other_client`, what the messages of a client
    yield that never held the label (drawn at random); `mean_image`, the mean of everybody else's images; `noise`.
    """
    asked = asked_of("classes", metrics)
    wanted = _wanted(found, truth)
    device = found.inputs.device  # 200 x 1200 pairs of photographs take a minute on one core, a second on a GPU
    rivals = _rivals(wanted, truth).on(device)
    shape = truth.private.inputs.shape[1:]
    if len(found.inputs) != len(found.labels):
        raise ShapeError(f"labels={len(found.labels)}, inputs={len(found.inputs)}: every picture needs its label")
    if len(found.inputs) and found.inputs.shape[1:] != shape:
        raise ShapeError(f"inputs={tuple(found.inputs.shape[1:])}: the private images are {tuple(shape)}")
    places = _places(found.labels, wanted)
    pictures = _at(found.inputs, places, shape)
    guesses = {"noise": torch.rand((1, *shape), generator=rng)}
    if (others := _others(truth)) is not None:
        guesses["mean_image"] = others[None]
    if found.prior is not None:
        guesses["prior"] = _at(found.prior, places, shape)
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
        facts=_facts(found, truth, wanted, places, rivals),
    )


def _accuracy(rivals: _Rivals, pictures: Tensor) -> float:
    hits = rivals.scores(pictures.to(rivals.means.device), ["attack_accuracy"])["attack_accuracy"]
    return sum(hits) / max(len(hits), 1)


def _wanted(found: RecoveredClasses, truth: Truth) -> Tensor:
    if (found.round, found.sender) in truth.used:
        behind: Tensor = torch.unique(truth.behind(found.round, found.sender).labels)
        return behind
    if found.sender in truth.owners or len(truth.private) == 0:
        raise DataError(
            f"sender={found.sender!r}, round={found.round}: the truth holds no examples behind that message; "
            "judge a finding with the truth of the same federation"
        )
    everywhere: Tensor = torch.unique(truth.private.labels)
    return everywhere


def _rivals(wanted: Tensor, truth: Truth) -> _Rivals:
    labels, means = class_means(truth.private)
    parts = [(labels, means)]
    public = truth.public
    if public is not None and public.labels is not None and len(public):
        parts.append(class_means(Examples(public.inputs, public.labels)))
    return _Rivals(
        wanted, torch.cat([label for label, _ in parts]), torch.cat([mean for _, mean in parts]), len(labels)
    )


def _places(named: Tensor, wanted: Tensor) -> list[int]:
    """For every wanted label the position of the first picture named by it, -1 for none."""
    where: dict[int, int] = {}
    for at, label in enumerate(named.tolist()):
        where.setdefault(label, at)
    return [where.get(label, -1) for label in wanted.tolist()]


def _at(pictures: Tensor, places: Sequence[int], shape: torch.Size) -> Tensor:
    found = torch.full((len(places), *shape), float("nan"))
    for at, place in enumerate(places):
        if place >= 0:
            found[at] = pictures[place].detach().cpu()
    return found


def _others(truth: Truth) -> Tensor | None:
    """The mean of images that are not private: the public ones of the same domain, else the test set."""
    public = truth.public
    if public is not None and len(public):
        same = public.inputs if public.domains is None else public.inputs[public.domains == 0]
        if len(same):
            return same.mean(dim=0)
    return truth.test.inputs.mean(dim=0) if len(truth.test) else None


def _holders(truth: Truth) -> dict[int, set[str]]:
    held: dict[int, set[str]] = {}
    for owner, label in zip(truth.owners, truth.private.labels.tolist(), strict=True):
        held.setdefault(label, set()).add(owner)
    return held


def _strangers(
    found: RecoveredClasses, truth: Truth, wanted: Tensor, places: Sequence[int], rng: torch.Generator
) -> Tensor | None:
    """For every label the candidate of a client that never held it."""
    if found.candidates is None or len(found.senders) < 2:
        return None
    held = _holders(truth)
    pictures = torch.full((len(wanted), *truth.private.inputs.shape[1:]), float("nan"))
    for at, (label, place) in enumerate(zip(wanted.tolist(), places, strict=True)):
        never = [number for number, sender in enumerate(found.senders) if sender not in held.get(label, set())]
        drawn = int(torch.randint(0, max(len(never), 1), (1,), generator=rng))
        if never and place >= 0:
            pictures[at] = found.candidates[never[drawn], place].detach().cpu()
    return pictures


def _facts(
    found: RecoveredClasses, truth: Truth, wanted: Tensor, places: Sequence[int], rivals: _Rivals
) -> dict[str, object]:
    """Whether copies of private images are public, and what tells a weak attack from a weak choice: the accuracy after
    each round, how often the chosen client is one that holds the label, and the accuracy if it always were."""
    facts: dict[str, object] = {"twins": truth.twins}
    shape = truth.private.inputs.shape[1:]
    if len(found.by_round) > 1:
        facts["accuracy_by_round"] = [_accuracy(rivals, _at(made, places, shape)) for made in found.by_round]
    held = _holders(truth)
    if found.candidates is not None and len(found.senders) > 1:
        pictures = torch.full((len(wanted), *shape), float("nan"))
        for at, (label, place) in enumerate(zip(wanted.tolist(), places, strict=True)):
            owners = [number for number, sender in enumerate(found.senders) if sender in held.get(label, set())]
            if owners and place >= 0:
                pictures[at] = found.candidates[owners[0], place].detach().cpu()
        facts["owner_accuracy"] = _accuracy(rivals, pictures)
    if found.chosen:
        right = [
            found.chosen[place] in held.get(label, set())
            for label, place in zip(wanted.tolist(), places, strict=True)
            if place >= 0
        ]
        facts["chosen_client_right"] = sum(right) / max(len(right), 1)
    return facts
