"""How far the public images are from the private ones, and what theorems 1 and 2 of adamsa.txt make of it.

Theorem 1: the risk on a mixture is the mixture of the risks, alpha e_priv + (1 - alpha) e_pub, exactly.
Theorem 2: |e_mix(h) - e_priv(h)| <= (1 - alpha) (d / 2 + lambda), with d the divergence of the symmetric-difference
class and lambda the smallest sum of both risks that one hypothesis reaches.

d cannot be computed. Its usual proxy is 2 (1 - 2 err), err the held-out error of a classifier that tells the domains
apart: it is too small wherever a better classifier exists. lambda needs the truth of both domains in the classes of
the private task; where the public images have none, it is unknown and stays so.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from fedleak.errors import RefusedError, ShapeError
from fedleak.learning.batches import epoch_batches
from fedleak.learning.functional import cross_entropy
from fedleak.learning.stacked import Stack
from fedleak.models import build_model
from fedleak.types import Examples, ModelSpec, Truth

__all__ = ["Bound", "Mixture", "federation_bound", "joint_risk", "known_bound", "mixture", "proxy_distance"]

JUDGE = ModelSpec("cnn")
FLAT_JUDGE = ModelSpec("mlp")
"""For what is no picture, or one too small to be pooled."""
EXAMPLES = 2000
"""Of each domain at most: enough to tell domains apart, and a few seconds of work."""


@dataclass(frozen=True)
class Mixture:
    """Risks of one model on a mixture and on its parts, as exact fractions; `alpha` is the private share."""

    alpha: Fraction
    private: Fraction
    public: Fraction
    mixed: Fraction

    @property
    def predicted(self) -> Fraction:
        """Theorem 1."""
        return self.alpha * self.private + (1 - self.alpha) * self.public


def mixture(wrong: Tensor, private: Tensor) -> Mixture:
    """`wrong` (n,) is 1 where a model disagrees with the truth, `private` (n,) marks examples of the private domain."""
    if wrong.shape != private.shape or wrong.ndim != 1:
        raise ShapeError(f"wrong {tuple(wrong.shape)} and private {tuple(private.shape)}: give one mark per example")
    mine, other = wrong[private.bool()], wrong[~private.bool()]
    if not len(wrong):
        raise RefusedError("wrong=(): a risk needs at least one example")

    def risk(part: Tensor) -> Fraction:
        return Fraction(int((part != 0).sum()), len(part)) if len(part) else Fraction(0)

    return Mixture(Fraction(len(mine), len(wrong)), risk(mine), risk(other), risk(wrong))


@dataclass(frozen=True)
class Bound:
    """Theorem 2 with what is known of it. `joint` is lambda; None: unknown."""

    alpha: float
    distance: float
    joint: float | None = None

    @property
    def value(self) -> float | None:
        """The bound, or None where lambda is unknown."""
        return None if self.joint is None else (1 - self.alpha) * (self.distance / 2 + self.joint)

    @property
    def known_part(self) -> float:
        """The bound at lambda = 0: what it is at least."""
        return (1 - self.alpha) * self.distance / 2

    def describe(self, measured: float) -> str:
        """The bound beside the risk that was measured on the private test set (1 - the attacker's accuracy).

        >>> Bound(0.5, 1.6).describe(0.3)
        'risk on private data 0.300; risk on the public mixture within 0.400 + 0.500 lambda of it, lambda unknown'
        """
        found = f"risk on private data {measured:.3f}; risk on the public mixture within "
        if self.value is None:
            return f"{found}{self.known_part:.3f} + {1 - self.alpha:.3f} lambda of it, lambda unknown"
        return f"{found}{self.value:.3f} of it (lambda at most {self.joint:.3f})"


def proxy_distance(
    private: Tensor, public: Tensor, rng: torch.Generator, *, judge: ModelSpec = JUDGE, steps: int = 200
) -> float:
    """2 (1 - 2 err) of a network that tells two sets of images apart: 0 where it cannot, 2 where it always can.

    Both domains have the same number of images, half of each is learned from, and the other half judged.
    """
    if private.shape[1:] != public.shape[1:]:
        raise ShapeError(
            f"images of {tuple(private.shape[1:])} and {tuple(public.shape[1:])}: domains of one shape needed"
        )
    count = min(len(private), len(public), EXAMPLES)
    if count < 4:
        raise RefusedError(f"images={count}: telling domains apart needs at least 4 of each; give more images")
    parts = [part[torch.randperm(len(part), generator=rng)[:count].to(part.device)] for part in (private, public)]
    inputs = torch.stack(parts, dim=1).flatten(0, 1)  # one of each in turn: both halves are balanced
    labels = torch.arange(2, device=inputs.device).repeat(count)
    wrong = _held_out(inputs, labels, 2, rng, judge, steps)
    return max(0.0, 2.0 * (1.0 - 2.0 * float(wrong.double().mean())))


def joint_risk(
    private: Examples, public: Examples, rng: torch.Generator, *, judge: ModelSpec = JUDGE, steps: int = 200
) -> float:
    """Lambda from above: held-out risks, added, of one network that learned from both domains.

    The best hypothesis is at least as good, so lambda is at most this, up to the noise of the held-out half.
    """
    count = min(len(private), len(public), EXAMPLES)
    if count < 4:
        raise RefusedError(f"images={count}: a joint risk needs at least 4 labelled images of each domain")
    chosen = [torch.randperm(len(part), generator=rng)[:count] for part in (private, public)]
    taken = [part.take(at.to(part.labels.device)) for part, at in zip((private, public), chosen, strict=True)]
    inputs = torch.stack([part.inputs for part in taken], dim=1).flatten(0, 1)
    labels = torch.stack([part.labels for part in taken], dim=1).flatten()
    wrong = _held_out(inputs, labels, int(labels.max()) + 1, rng, judge, steps)
    return float(sum(part.double().mean() for part in (wrong[0::2], wrong[1::2])))


def _held_out(
    inputs: Tensor, labels: Tensor, classes: int, rng: torch.Generator, judge: ModelSpec, steps: int
) -> Tensor:
    """1 where a network that learned from the first half is wrong, over the second half; pairs stay together."""
    middle = (len(inputs) // 4) * 2
    first, second = (inputs[:middle], labels[:middle]), (inputs[middle:], labels[middle:])
    module = build_model(judge, tuple(inputs.shape[1:]), classes, rng)
    stack = Stack([module], lr=1e-3, device=inputs.device)
    order: list[Tensor] = []
    while len(order) < steps:
        order += epoch_batches(middle, 64, rng)
    middle_grey, spread = first[0].mean(), first[0].std().clamp_min(1e-6)
    stack.fit(cross_entropy, (first[0] - middle_grey) / spread, [first[1]], [order[:steps]])
    return stack.predict((second[0] - middle_grey) / spread)[0].argmax(dim=-1) != second[1]


def federation_bound(
    truth: Truth, rng: torch.Generator, *, same_classes: bool = False, steps: int = 200
) -> Bound | None:
    """Theorem 2 for a simulated federation: the private domain is its test set, the foreign one the public images
    that are not marked as private. None where there is no public set.

    `same_classes` says that the labels of the public images are classes of the private task; only then is there a
    lambda.
    """
    public = truth.public
    if public is None or not len(public):
        return None
    domains = torch.ones(len(public), dtype=torch.int64) if public.domains is None else public.domains.cpu()
    foreign = (domains != 0).nonzero().flatten()
    alpha = 1.0 - len(foreign) / len(public)
    if len(foreign) == 0:
        return Bound(1.0, 0.0, 0.0)  # no foreign image: both risks are of one domain
    images = public.inputs.cpu()[foreign]
    judge = JUDGE if images.ndim == 4 and min(images.shape[2:]) >= 8 else FLAT_JUDGE
    distance = proxy_distance(truth.test.inputs, images, rng, judge=judge, steps=steps)
    joint = None
    if same_classes and public.labels is not None:
        labelled = Examples(images, public.labels.cpu()[foreign])
        joint = joint_risk(truth.test, labelled, rng, judge=judge, steps=steps)
    return Bound(alpha, distance, joint)


def _alike(truth: Truth) -> bool:
    """Whether the labels of the foreign public images are all classes that the private test set has."""
    public = truth.public
    if public is None or public.labels is None:
        return False
    labels = public.labels.cpu() if public.domains is None else public.labels.cpu()[public.domains.cpu() != 0]
    return bool(torch.isin(labels, truth.test.labels.cpu()).all())


_KNOWN: dict[str, Bound | None] = {}


def known_bound(truth: Truth) -> Bound | None:
    """The bound as it stands beside every stolen model: 100 steps of the judge, always the same dice. Lambda is unknown
    unless all public images are of the private domain, or the others are labelled with classes of the private task.
    None where there are too few images to tell.

    The same images give the same bound, so it is computed once for all attacks and defenses that a process judges.
    """
    if truth.public is None or not len(truth.public) or not len(truth.test):
        return None
    images = hashlib.sha256()
    for part in (truth.test.inputs, truth.public.inputs, truth.public.domains, truth.public.labels):
        images.update(b"" if part is None else part.cpu().contiguous().numpy().tobytes())
    key = images.hexdigest()
    if key not in _KNOWN:
        try:
            dice = torch.Generator().manual_seed(0)
            _KNOWN[key] = federation_bound(truth, dice, same_classes=_alike(truth), steps=100)
        except (RefusedError, ShapeError):
            _KNOWN[key] = None
    return _KNOWN[key]
