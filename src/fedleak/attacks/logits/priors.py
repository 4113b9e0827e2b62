"""What the attack believes of a label before it sees a logit (pli.txt, 3.3): eq. 8, or eq. 9 with a learned translator.

A translator is trained on public pictures of people who are seen in both domains, so never on a target, and used on
the other domain's pictures of everybody. Where only targets are seen in the other domain (FaceScrub as the paper has
it) and that domain is a blur, blurred copies of D_0 make the pairs. What it yields is kept under the hash of all it was
made from.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor
from torch.nn import functional as F

from fedleak.attacks.logits.observed import Scene
from fedleak.attacks.logits.translation import (
    Beat,
    Pairs,
    Translate,
    train_autoencoder,
    train_cyclegan,
    train_deblur,
)
from fedleak.errors import RefusedError
from fedleak.files import disk_is_full, kept_in, one_at_a_time, replace_file

__all__ = ["EPOCHS", "Kind", "Prior", "PriorRecipe", "mean_prior"]

Kind = Literal["mean", "autoencoder", "cyclegan", "deblur"]

TRAINERS: Mapping[str, Callable[..., Translate]] = {
    "autoencoder": train_autoencoder,
    "cyclegan": train_cyclegan,
    "deblur": train_deblur,
}
EPOCHS: Mapping[str, int] = {"mean": 0, "autoencoder": 40, "cyclegan": 50, "deblur": 200}
BATCH: Mapping[str, int] = {"mean": 1, "autoencoder": 32, "cyclegan": 1, "deblur": 1}
REVISION = 2
"""Part of the hash: raise it when a translator is trained in another way."""
REMEMBERED = 4

_memory: OrderedDict[str, dict[str, Tensor]] = OrderedDict()


@dataclass(frozen=True, eq=False)
class Prior:
    """`pictures` (m + 1, height, width, channels) in [-1, 1]: one for each of `labels` (m,), and last the mean of D_0,
    for every label that is not among them."""

    pictures: Tensor
    labels: Tensor

    def rows(self, labels: Tensor | None, count: int) -> Tensor:
        """The row of `pictures` for each of `count` labels; without labels the last for all."""
        last = torch.full((count,), len(self.labels), dtype=torch.long, device=self.pictures.device)
        if labels is None or len(self.labels) == 0:
            return last
        at = torch.searchsorted(self.labels, labels).clamp(max=len(self.labels) - 1)
        return torch.where(self.labels[at] == labels, at, last)

    def of(self, labels: Tensor) -> Tensor:
        return self.pictures[self.rows(labels, len(labels))]


def mean_prior(scene: Scene) -> Prior:
    """Eq. 8: the mean of D_0, whatever the label."""
    mean = scene.pictures[scene.clean].mean(dim=0, keepdim=True)
    return Prior(mean, torch.zeros(0, dtype=torch.long, device=mean.device))


@dataclass(frozen=True)
class PriorRecipe:
    """Which prior, and how long and how wide its translator is; `blur` is the side of the box that makes pairs where
    there are none; `cache` is a folder to keep it in between runs, by default the one that the run offers
    (`fedleak.files.keeping_in`)."""

    kind: Kind = "mean"
    epochs: int | None = None
    width: int = 64
    batch: int | None = None
    cache: str | None = None
    blur: int | None = None

    def make(self, scene: Scene, seed: int, notes: MutableMapping[str, Any], beat: Beat = lambda: None) -> Prior:
        """Where the public set has no labels (DS-FL) only eq. 8 is left, and `notes` says so."""
        if self.kind == "mean" or scene.labels is None:
            unlabelled = self.kind != "mean"
            notes["prior"] = f"mean of D_0, not {self.kind}: no public labels" if unlabelled else "mean of D_0"
            return mean_prior(scene)
        pairs = _pairs(scene, self.kind, self.blur, notes)
        notes["prior"] = self.kind  # whoever made it: a row must not depend on which worker was first
        found = self._found(self._key(scene, seed), lambda: self._learned(scene, pairs, seed, beat))
        device = scene.pictures.device
        labels, pictures = found["labels"].to(device), found["pictures"].to(device)
        lacking = int((~torch.isin(scene.targets, labels)).sum())
        if lacking:
            notes["prior_missing"] = f"{lacking} target labels have no public picture: the mean of D_0 stands for them"
        return Prior(torch.cat([pictures, mean_prior(scene).pictures]), labels)

    def _learned(self, scene: Scene, pairs: Pairs, seed: int, beat: Beat) -> dict[str, Tensor]:
        """Eq. 9: the mean of every label's translated pictures."""
        rng = torch.Generator().manual_seed(seed)
        settings = {"epochs": self._epochs, "width": self.width, "batch": self.batch or BATCH[self.kind]}
        translate = TRAINERS[self.kind](pairs, rng=rng, beat=beat, **settings)
        assert scene.labels is not None
        of_other = scene.labels[scene.other]
        made = translate(_first(scene.pictures[scene.other]))
        labels = torch.unique(of_other)
        means = torch.stack([made[of_other == label].mean(dim=0) for label in labels])
        return {"labels": labels.cpu(), "pictures": means.permute(0, 2, 3, 1).contiguous().cpu()}

    @property
    def _epochs(self) -> int:
        return EPOCHS[self.kind] if self.epochs is None else self.epochs

    # --- kept under the hash of what it was made from ---------------------------------------------------------------

    def _key(self, scene: Scene, seed: int) -> str:
        assert scene.labels is not None
        told = (REVISION, self.kind, self._epochs, self.width, self.batch or BATCH[self.kind], seed, self.blur)
        made_of = hashlib.sha256(repr((*told, scene.pictures.device.type, tuple(scene.pictures.shape))).encode())
        # The targets too: the same public set with others of them must not find a translator that learnt from these.
        for value in (scene.pictures, scene.labels, scene.other, scene.targets.sort().values):
            made_of.update(value.detach().cpu().contiguous().numpy().tobytes())
        return made_of.hexdigest()

    def _file(self, key: str) -> Path | None:
        folder = kept_in() if self.cache is None else _made(self.cache)
        return None if folder is None else folder / f"prior-{key}.safetensors"

    def _found(self, key: str, learn: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """What is kept, or else what is learned now; workers of one run learn the same prior once."""
        file = self._file(key)
        if key not in _memory:
            with contextlib.nullcontext() if file is None else one_at_a_time(file):
                found = None if file is None else _read(file)
                if found is None:
                    found = learn()
                    if file is not None:
                        replace_file(file, save_tensors(found))
            _memory[key] = found
        _memory.move_to_end(key)
        while len(_memory) > REMEMBERED:
            _memory.popitem(last=False)
        return _memory[key]


def _made(cache: str) -> Path:
    """The folder that the user named, asked for before a translator is learned that could not be kept."""
    folder = Path(cache)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as problem:
        if disk_is_full(problem):
            raise
        raise RefusedError(
            f"cache={cache!r}: priors cannot be kept there ({problem.strerror}); name another folder, or leave it out"
        ) from None
    return folder


def _read(file: Path) -> dict[str, Tensor] | None:
    try:
        found = load_tensors(file.read_bytes())
    except Exception:  # a damaged file is as good as none
        return None
    return found if {"labels", "pictures"} <= found.keys() else None


def _pairs(scene: Scene, kind: str, blur: int | None, notes: MutableMapping[str, Any]) -> Pairs:
    """Public pictures of people who are no targets and are seen in both domains; else D_0 beside blurred copies."""
    assert scene.labels is not None
    if len(scene.other) == 0:
        raise RefusedError(
            f"prior={kind!r}: the public set has no pictures of another domain to translate; "
            "use prior='mean', or gamma=0 for no prior"
        )
    of_clean, of_other = scene.labels[scene.clean], scene.labels[scene.other]
    public = ~torch.isin(of_clean, scene.targets)
    shared = torch.unique(of_clean[torch.isin(of_clean, of_other) & public])
    if len(shared):
        clean, other = scene.clean[torch.isin(of_clean, shared)], scene.other[torch.isin(of_other, shared)]
        seen = _first(scene.pictures[other])
        return Pairs(seen, scene.labels[other], _first(scene.pictures[clean]), scene.labels[clean])
    if blur is None or not bool(public.any()):
        raise RefusedError(
            f"prior={kind!r}: nobody but targets is seen in both domains of the public set, so there is nothing "
            "to learn a translation from; use prior='mean', or where the other domain is a blur prior_blur = the side "
            "of its box"
        )
    notes["prior_pairs"] = f"D_0 and copies of it blurred by a box of {blur}"
    clean = scene.clean[public]
    pictures = _first(scene.pictures[clean])
    return Pairs(_blurred(pictures, blur), scene.labels[clean], pictures, scene.labels[clean])


def _blurred(pictures: Tensor, side: int) -> Tensor:
    """The mean over the box around each pixel, mirrored at the borders; an even box reaches further up and left."""
    if side > min(pictures.shape[-2:]):
        raise RefusedError(
            f"prior_blur={side}: the pictures are {pictures.shape[-2]}x{pictures.shape[-1]}; use a box that fits in"
        )
    before, after = side // 2, side - 1 - side // 2
    return F.avg_pool2d(F.pad(pictures, (before, after, before, after), mode="reflect"), side, stride=1)


def _first(pictures: Tensor) -> Tensor:
    """Channels last to channels first."""
    return pictures.permute(0, 3, 1, 2).contiguous()
