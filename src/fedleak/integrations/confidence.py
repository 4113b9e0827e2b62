"""How sure is an attack when nobody knows the truth? Three things that need none.

The objective: how well the pictures explain the update. The agreement: do searches from different starts end at the
same picture? And what both are worth: the same attack, on the same recording, whose updates were replaced by noise of
the same size. What does not beat that is nothing.
"""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from PIL import Image
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedleak.errors import RefusedError
from fedleak.seeding import Seeds
from fedleak.types import Message, Reconstruction, RecoveredImages, Round, Transcript, Weights

__all__ = ["Confidence", "confidence", "noise_instead"]

MARGIN_DB, MARGIN_OBJECTIVE = 10.0, 0.5
"""What counts as better than noise: 10 dB more agreement, and at most half of its objective. Two runs on noise differ
by one or two dB and some percent."""

Run = Callable[[Transcript, int], Reconstruction]
"""An attack as a function of what it sees and a seed."""


@dataclass(frozen=True, eq=False)
class Confidence:
    """What can be said of one client's pictures without the truth. No score is invented: `believed` compares only.

    `agreement[i]` is the PSNR in dB between picture i and its counterpart from the start that agrees least. The null
    values are what the same attack reaches on an update that holds no picture.
    """

    sender: str
    round: int
    inputs: Tensor
    objective: float
    agreement: tuple[float, ...]
    null_objective: float
    null_agreement: float
    status: str = "ok"
    reason: str = ""

    @property
    def believed(self) -> tuple[bool, ...]:
        """One per picture: the update is explained far better than noise is, and all starts found it again."""
        explained = self.objective < MARGIN_OBJECTIVE * self.null_objective
        return tuple(explained and one > self.null_agreement + MARGIN_DB for one in self.agreement)

    def _repr_html_(self) -> str:
        """For notebooks: the pictures, and under each how far to believe it."""
        title = f"<b>{html.escape(self.sender)}</b>, round {self.round}"
        if self.status != "ok":
            return f"<p>{title}: {html.escape(self.status)}: {html.escape(self.reason)}</p>"
        shown = "".join(
            f'<figure style="display:inline-block;margin:4px"><img alt="recovered picture" src="{_png(picture)}" '
            f'style="height:96px;image-rendering:pixelated"><figcaption>{"believed" if sure else "not believed"}: '
            f"starts agree to {agreed:.0f} dB (noise: {self.null_agreement:.0f})</figcaption></figure>"
            for picture, agreed, sure in zip(self.inputs, self.agreement, self.believed, strict=True)
        )
        return f"<p>{title}: objective {self.objective:.2g} (noise: {self.null_objective:.2g})</p>{shown}"


def confidence(transcript: Transcript, run: Run, *, seeds: Sequence[int] = (0, 1)) -> list[Confidence]:
    """Run the attack once per seed on the transcript and on its null, and compare.

    Sees: the transcript. Needs: at least two seeds. Guarantees: the truth has no part in it.
    """
    if len(set(seeds)) < 2:
        raise RefusedError(f"seeds={list(seeds)}: agreement needs at least two different starts")
    nothing = noise_instead(transcript, seeds[0])
    found = [run(transcript, seed) for seed in seeds]
    empty = [run(nothing, seed) for seed in seeds]
    return [_victim([one.victims[at] for one in found], [one.victims[at] for one in empty]) for at in _places(found)]


def _places(found: Sequence[Reconstruction]) -> range:
    return range(min(len(one.victims) for one in found))


def _victim(found: list[RecoveredImages], empty: list[RecoveredImages]) -> Confidence:
    best = min(found, key=lambda one: one.objective if math.isfinite(one.objective) else math.inf)
    if any(one.status != "ok" for one in found):
        bad = next(one for one in found if one.status != "ok")
        nan = math.nan
        return Confidence(best.sender, best.round, bad.inputs, nan, (), nan, nan, bad.status, bad.reason)
    agreed = _agreement(best, [one for one in found if one is not best])
    usable = [one for one in empty if one.status == "ok"]
    null_objective = min((one.objective for one in usable), default=math.inf)
    null_agreement = max(_agreement(usable[0], usable[1:])) if len(usable) > 1 else -math.inf
    return Confidence(best.sender, best.round, best.inputs, best.objective, agreed, null_objective, null_agreement)


def _agreement(one: RecoveredImages, others: Sequence[RecoveredImages]) -> tuple[float, ...]:
    """For every picture of `one` the PSNR to its counterpart in the other that has the worst."""
    pictures = one.inputs.clamp(0, 1).flatten(1).double()
    worst = torch.full((len(pictures),), math.inf, dtype=torch.float64)
    for other in others:
        theirs = other.inputs.clamp(0, 1).flatten(1).double()
        squares = (pictures[:, None] - theirs[None]).square().mean(dim=-1).nan_to_num(nan=1.0)
        rows, columns = linear_sum_assignment(squares.cpu().numpy())
        decibel = -10 * torch.log10(squares[rows, columns].clamp_min(1e-12))
        worst[rows] = torch.minimum(worst[rows], decibel.cpu())
    return tuple(float(value) for value in worst)


def _png(picture: Tensor) -> str:
    """Pixels (C, H, W) as a data URL."""
    levels = (picture.detach().cpu().nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8)
    array = levels[0].numpy() if len(levels) == 1 else levels[:3].permute(1, 2, 0).contiguous().numpy()
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def noise_instead(transcript: Transcript, seed: int = 0) -> Transcript:
    """The same transcript, every client's update replaced by Gaussian noise of the same length, tensor by tensor."""

    def message(seen: Round, one: Message) -> Message:
        if not isinstance(one.payload, Weights) or not isinstance(seen.broadcast, Weights):
            return one
        rng = Seeds(seed).generator("noise instead", seen.index, one.sender)
        start, sent = seen.broadcast.tensors, dict(one.payload.tensors)
        for name, value in sent.items():
            if name in start and start[name].shape == value.shape and value.is_floating_point():
                length = float((value.double() - start[name].double()).norm())
                noise = torch.randn(value.shape, generator=rng)
                scaled = noise * (length / max(float(noise.double().norm()), 1e-12))
                sent[name] = start[name] + scaled.to(value)
        return replace(one, payload=replace(one.payload, tensors=sent))

    return transcript.mapped(lambda seen: replace(seen, received=tuple(message(seen, m) for m in seen.received)))
