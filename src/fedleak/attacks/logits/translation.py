"""Training a translator from the other domain to that of the private pictures, on public identities only (section 5).

This takes longer than the attack itself where pictures are large: `beat` is called all along, and may raise.

Pairs are two public pictures of one person, one of each domain. Which of a person's pictures belong together nobody
says: the autoencoder and the deblurring network pair each with its nearest in pixels, CycleGAN takes any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedleak.attacks.logits.translators import AutoEncoder, ResnetGenerator, patch_discriminator
from fedleak.errors import RefusedError
from fedleak.learning.batches import epoch_batches
from fedleak.learning.stacked import Stack

__all__ = ["Beat", "Pairs", "Translate", "train_autoencoder", "train_cyclegan", "train_deblur"]

Translate = Callable[[Tensor], Tensor]
"""Pictures (n, C, H, W) in [-1, 1] of the other domain to the private one."""

Beat = Callable[[], None]
"""A sign of life, after every step or epoch."""

PAIRS_A_LABEL = 100
CYCLE, IDENTITY = 3.0, 0.5
MSE, ADVERSARIAL = 0.5, 0.001
POOL = 50
STARTS = 3
SATURATED = 0.95
"""Mean distance from middle grey, of at most 1, above which pictures count as white or black all over."""
AT_ONCE = 64
"""Pictures that are translated at once: wide layers of full-size pictures are what takes a CPU's memory."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Public pictures (n, C, H, W) of both domains with the person on each; only people seen in both."""

    other: Tensor
    other_labels: Tensor
    clean: Tensor
    clean_labels: Tensor

    def nearest(self) -> tuple[Tensor, Tensor]:
        """Positions in `other`, and for each the same person's nearest picture in `clean`."""
        found = []
        for at, label in enumerate(self.other_labels.tolist()):
            own = torch.nonzero(self.clean_labels == label).flatten()
            far = (self.clean[own] - self.other[at]).square().flatten(1).sum(dim=1)
            found.append(own[far.argmin()])
        return torch.arange(len(self.other), device=self.other.device), torch.stack(found)

    def any(self, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Up to a hundred pairs of every person, drawn from all of theirs."""
        left, right = [], []
        for label in torch.unique(self.clean_labels).tolist():
            a = torch.nonzero(self.other_labels == label).flatten()
            b = torch.nonzero(self.clean_labels == label).flatten()
            chosen = torch.randperm(len(a) * len(b), generator=rng)[:PAIRS_A_LABEL].to(a.device)
            left.append(a[chosen // len(b)])
            right.append(b[chosen % len(b)])
        return torch.cat(left), torch.cat(right)


def train_autoencoder(
    pairs: Pairs, *, epochs: int, width: int, batch: int, rng: torch.Generator, beat: Beat = lambda: None
) -> Translate:
    """Mean squared error between the nearest pair, Adam 1e-3.

    Now and then training drives the tanh at the end into saturation, after which every picture comes out white. That
    shows on the public pairs alone; then another start is made at a third of the step."""
    left, right = pairs.nearest()
    inputs, targets = pairs.other[left], pairs.clean[right]
    for start in range(STARTS):
        module = _built(lambda: AutoEncoder(pairs.clean.shape[1], _size(pairs), width), rng)
        stack = Stack([module], lr=1e-3 / 3**start, device=pairs.clean.device)
        for order in [epoch_batches(len(left), batch, rng) for _ in range(epochs)]:
            stack.fit(F.mse_loss, inputs, [targets], [order])
            beat()
        if not _collapsed(stack.predict(inputs, AT_ONCE)[0], targets):
            return partial(_translated, stack)
    raise RefusedError(
        f"prior='autoencoder': after {STARTS} starts it still makes a white or black picture of everybody; "
        "use prior='mean', another seed, or fewer prior_epochs"
    )


def _translated(stack: Stack, pictures: Tensor) -> Tensor:
    return stack.predict(pictures, AT_ONCE)[0]


def _collapsed(made: Tensor, targets: Tensor) -> bool:
    """White or black all over and further from the targets than their mean is, or not numbers. One that has hardly
    learnt makes the same grey of everybody, which is no collapse: more epochs help it."""
    far, plain = ((value - targets).square().mean() for value in (made, targets.mean(dim=0)))
    return not bool(torch.isfinite(far)) or bool((made.abs().mean() > SATURATED) & (far > plain))


def train_cyclegan(
    pairs: Pairs, *, epochs: int, width: int, batch: int, rng: torch.Generator, beat: Beat = lambda: None
) -> Translate:
    """CycleGAN: least-squares GAN both ways, both cycles by 3, identity by half of that, a pool of 50 fakes."""
    device, channels = pairs.clean.device, pairs.clean.shape[1]
    forth, back = (_built(lambda: ResnetGenerator(channels, width), rng).to(device) for _ in range(2))
    of_clean, of_other = (
        _built(lambda: patch_discriminator(channels, _size(pairs), width), rng).to(device) for _ in range(2)
    )
    makers = _adam([forth, back], 2e-4)
    critics = _adam([of_clean, of_other], 2e-4)
    clean_pool, other_pool = _Pool(rng), _Pool(rng)
    left, right = pairs.any(rng)
    for _ in range(epochs):
        for index in epoch_batches(len(left), batch, rng):
            other, clean = pairs.other[left[index]], pairs.clean[right[index]]
            made_clean, made_other = forth(other), back(clean)
            fooled = _ideal(of_clean(made_clean), 1.0) + _ideal(of_other(made_other), 1.0)
            around = F.l1_loss(back(made_clean), other) + F.l1_loss(forth(made_other), clean)
            same = F.l1_loss(forth(clean), clean) + F.l1_loss(back(other), other)
            _step(makers, fooled + CYCLE * around + CYCLE * IDENTITY * same)
            old_clean, old_other = clean_pool(made_clean.detach()), other_pool(made_other.detach())
            told = _ideal(of_clean(clean), 1.0) + _ideal(of_clean(old_clean), 0.0)
            told = told + _ideal(of_other(other), 1.0) + _ideal(of_other(old_other), 0.0)
            _step(critics, 0.5 * told)
            beat()
    return _use(forth)


def train_deblur(
    pairs: Pairs, *, epochs: int, width: int, batch: int, rng: torch.Generator, beat: Beat = lambda: None
) -> Translate:
    """The same generator on the nearest pairs: half the mean squared error and a little of a critic.

    The paper's DeblurGAN-v2 adds a perceptual term of VGG19, whose weights are not to be had here."""
    device, channels = pairs.clean.device, pairs.clean.shape[1]
    maker = _built(lambda: ResnetGenerator(channels, width), rng).to(device)
    critic = _built(lambda: patch_discriminator(channels, _size(pairs), width), rng).to(device)
    makers, critics = _adam([maker], 1e-4), _adam([critic], 1e-4)
    left, right = pairs.nearest()
    for _ in range(epochs):
        for index in epoch_batches(len(left), batch, rng):
            other, clean = pairs.other[left[index]], pairs.clean[right[index]]
            made = maker(other)
            _step(makers, MSE * F.mse_loss(made, clean) + ADVERSARIAL * _ideal(critic(made), 1.0))
            _step(critics, 0.5 * (_ideal(critic(clean), 1.0) + _ideal(critic(made.detach()), 0.0)))
            beat()
    return _use(maker)


class _Pool:
    """The last fakes: half of the time a critic sees an old one instead of the new."""

    def __init__(self, rng: torch.Generator) -> None:
        self._kept: list[Tensor] = []
        self._rng = rng

    def __call__(self, fresh: Tensor) -> Tensor:
        given = []
        for picture in fresh:
            if len(self._kept) < POOL:
                self._kept.append(picture)
                given.append(picture)
            elif float(torch.rand(1, generator=self._rng)) < 0.5:
                given.append(picture)
            else:
                at = int(torch.randint(0, POOL, (1,), generator=self._rng))
                given.append(self._kept[at])
                self._kept[at] = picture
        return torch.stack(given)


def _size(pairs: Pairs) -> tuple[int, int]:
    height, width = pairs.clean.shape[-2:]
    return int(height), int(width)


def _built(make: Callable[[], nn.Module], rng: torch.Generator) -> nn.Module:
    """Layers draw from torch's global generator when they are made: lend it a seeded one and give it back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(0, 2**62, (1,), generator=rng)))
        return make()


def _adam(modules: list[nn.Module], lr: float) -> torch.optim.Adam:
    return torch.optim.Adam([p for module in modules for p in module.parameters()], lr=lr, betas=(0.5, 0.999))


def _ideal(scores: Tensor, value: float) -> Tensor:
    """Least-squares GAN: how far the scores are from what they should be."""
    return (scores - value).square().mean()


def _step(optimiser: torch.optim.Adam, loss: Tensor) -> None:
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for parameter, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = slope
    optimiser.step()


def _use(module: nn.Module) -> Translate:
    def translate(pictures: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([module(part) for part in torch.split(pictures, AT_ONCE)])

    return translate
