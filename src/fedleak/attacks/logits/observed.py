"""What the attacks read off a transcript, checked: public pictures, target labels, the predictions of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedleak.errors import RefusedError
from fedleak.types import Predictions, PublicSet, Round, Setup

__all__ = ["Answers", "Observed", "Scene", "read_round", "read_scene"]

SUM = 1e-3
"""How far the sum of a row of probabilities may be from one."""
SMALLEST = 1e-12
"""A probability of zero has no logarithm."""


@dataclass(frozen=True, eq=False)
class Scene:
    """The public set and whom the attack looks for. `pictures` (n, height, width, channels) are in [-1, 1]; `clean`
    are the positions of D_0, `other` those of D_a."""

    pictures: Tensor
    labels: Tensor | None
    clean: Tensor
    other: Tensor
    targets: Tensor
    classes: int

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def picture(self) -> tuple[int, int, int]:
        """(channels, height, width)"""
        _, height, width, channels = self.pictures.shape
        return channels, height, width


@dataclass(frozen=True, eq=False)
class Answers:
    """One model's outputs on the public pictures `index`, as logits (from probabilities: their logarithms)."""

    logits: Tensor
    index: Tensor

    def at(self, positions: Tensor, public: int) -> Tensor:
        """The logits for these public pictures, all of which must have been answered."""
        row = torch.full((public,), -1, dtype=torch.long, device=self.index.device)
        row[self.index] = torch.arange(len(self.index), device=self.index.device)
        return self.logits[row[positions]]


@dataclass(frozen=True, eq=False)
class Observed:
    """One round: what every client said, in the order of the messages, and the server's own predictions if recorded."""

    number: int
    clients: Mapping[str, Answers]
    server: Answers | None

    @property
    def bytes(self) -> int:
        """What it takes up in memory."""
        said = [*self.clients.values(), *([] if self.server is None else [self.server])]
        return sum(one.logits.nbytes + one.index.nbytes for one in said)

    def answered(self, positions: Tensor, who: Sequence[Answers], public: int) -> Tensor:
        """Those of the positions that all of them answered."""
        count = torch.zeros(public, dtype=torch.long, device=positions.device)
        for one in who:
            count[one.index] += 1
        kept = positions[count[positions] == len(who)]
        if len(kept) == 0:
            raise RefusedError(
                f"round {self.number}: no public picture of the private domain was answered by all of "
                f"{len(who)} models, of clients and server; let them predict on more of the public set (alignment), or "
                "attack up to an earlier round (round=...)"
            )
        return kept


def read_scene(setup: Setup) -> Scene:
    public = setup.public
    if public is None:
        raise RefusedError(
            "public set: the transcript holds none, and the attack learns from predictions on public pictures"
        )
    _check_pictures(public, setup.input_shape)
    device = public.inputs.device
    domains = torch.zeros(len(public), dtype=torch.long, device=device) if public.domains is None else public.domains
    if tuple(domains.shape) != (len(public),) or not bool(((domains == 0) | (domains == 1)).all()):
        raise RefusedError(
            "public set: domains must be one 0 (the private pictures' domain) or 1 (another) per picture, "
            f"found {tuple(domains.shape)} for {len(public)} pictures"
        )
    clean, other = (torch.nonzero(domains == which).flatten() for which in (0, 1))
    if len(clean) == 0:
        raise RefusedError(
            "public set: no picture is of the private pictures' domain (D_0), and nothing else shows what a private "
            "picture looks like; give public pictures of people who are no targets"
        )
    return Scene(
        pictures=(public.inputs.permute(0, 2, 3, 1) * 2 - 1).contiguous().to(torch.float32),
        labels=None if public.labels is None else public.labels.to(torch.long),
        clean=clean,
        other=other,
        targets=_targets(setup, device),
        classes=setup.classes,
    )


def _check_pictures(public: PublicSet, shape: tuple[int, ...]) -> None:
    if len(public) == 0 or public.inputs.dim() != 4 or tuple(public.inputs.shape[1:]) != tuple(shape):
        raise RefusedError(
            f"public set: pictures of {tuple(public.inputs.shape)}, expected (n, {', '.join(map(str, shape))}), n > 0"
        )
    if not bool(torch.isfinite(public.inputs).all()):
        raise RefusedError("public set: the pictures hold numbers that are not finite")
    if public.labels is not None and tuple(public.labels.shape) != (len(public),):
        raise RefusedError(f"public set: labels of {tuple(public.labels.shape)} for {len(public)} pictures")


def _targets(setup: Setup, device: torch.device) -> Tensor:
    given = setup.disclosed.get("target_labels")
    if not isinstance(given, list | tuple) or not given:
        raise RefusedError(f"target_labels={given!r}: must be a list of at least one label")
    for label in given:
        if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < setup.classes:
            raise RefusedError(
                f"target_labels: {label!r} is no class; the predictions have classes 0 to {setup.classes - 1}"
            )
    if len(set(given)) < len(given):
        raise RefusedError("target_labels: a label stands there twice; name each once")
    return torch.tensor(list(given), dtype=torch.long, device=device)


def read_round(seen: Round, scene: Scene, *, renormalise: bool = False) -> Observed:
    """The predictions of a round, or RefusedError where one cannot be what it says it is."""
    clients: dict[str, Answers] = {}
    for message in seen.received:
        payload = message.payload
        where = f"round {seen.index}, {message.sender}"
        if not isinstance(payload, Predictions):
            raise RefusedError(f"{where}: sent {type(payload).__name__.lower()}; this attack reads predictions")
        if message.sender in clients:
            raise RefusedError(f"{where}: two messages of one sender in one round")
        clients[message.sender] = _answers(payload, where, scene, renormalise)
    if not clients:
        raise RefusedError(f"round {seen.index}: no client sent predictions")
    own = None
    if seen.server is not None:
        own = _answers(seen.server, f"round {seen.index}, the server's own predictions", scene, renormalise)
    return Observed(seen.index, clients, own)


def _answers(payload: Predictions, where: str, scene: Scene, renormalise: bool) -> Answers:
    values, index = payload.values, payload.index
    if index.dim() != 1 or values.dim() != 2 or tuple(values.shape) != (len(index), scene.classes):
        raise RefusedError(
            f"{where}: predictions of {tuple(values.shape)} for {tuple(index.shape)} public pictures and "
            f"{scene.classes} classes; one row per picture and one column per class are needed"
        )
    if len(index) == 0 or not 0 <= int(index.min()) <= int(index.max()) < len(scene):
        named = f"{int(index.min())} to {int(index.max())}" if len(index) else "none"
        raise RefusedError(
            f"{where}: predictions on pictures {named}; they must be on pictures 0 to {len(scene) - 1} of the public "
            "set, the one in the transcript"
        )
    if len(torch.unique(index)) < len(index):
        raise RefusedError(f"{where}: two predictions for one public picture")
    if not bool(torch.isfinite(values).all()):
        raise RefusedError(
            f"{where}: the predictions hold numbers that are not finite; leave the round out (round=...) or the message"
        )
    values = values.to(torch.float32)
    if payload.scale == "probabilities":
        values = _checked(values, where, renormalise).clamp(min=SMALLEST).log()
    return Answers(values, index.to(torch.long))


def _checked(values: Tensor, where: str, renormalise: bool) -> Tensor:
    if renormalise:
        values = values.clamp(min=0)
        total = values.sum(dim=1, keepdim=True)
        return torch.where(total > 0, values / total.clamp(min=SMALLEST), 1.0 / values.shape[1])
    worst = float((values.sum(dim=1) - 1).abs().max())
    if float(values.min()) < -SUM or worst > SUM:
        raise RefusedError(
            f"{where}: probabilities from {float(values.min()):.3g} on, with a sum that is {worst:.3g} away from one; "
            "if these are scores (rounded, or with noise), attack with renormalise=true"
        )
    return values
