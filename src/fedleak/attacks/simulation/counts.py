"""How many examples of every class stand behind an update of weights (fedavg_leakage.txt, sections 3.2 and 4.5).

For softmax and cross-entropy the last layer's row of class k moves by the mean of (p_k - [label is k]) times the
features. With p and the features' sum O estimated on noise, the update gives the counts (eq. 2). Over many local steps
p and O change: "interpolated" takes them on the straight line between the broadcast and the sent weights, step by step,
"geng_server" at the broadcast and "geng_client" at the sent weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedleak.attacks.inversion.head import Head, find_head
from fedleak.attacks.inversion.victims import network_of
from fedleak.errors import RefusedError
from fedleak.learning.functional import Network
from fedleak.types import Named, Setup, Weights

__all__ = ["ClientAt", "CountRule", "LabelEstimator", "Statistics", "interpolants", "labels_of", "rounded_counts"]

CountRule = Literal["interpolated", "geng_server", "geng_client"]

ClientAt = Literal["released", "paper"]
"""Where "geng_client" looks: the last interpolant, 1 - 1/U, or the sent weights."""

PIECE = 500
"""Pictures of noise that go through the network at once."""
LARGEST = 1e12
"""Counts of a class, before they are cut down to a total."""
FIRST = 16
"""Pictures that are enough to find the last layer with."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """What a network makes of noise: mean probability of each class, mean sum of what the last layer is given."""

    expected: Tensor
    features: float


def interpolants(rule: CountRule, steps: int, client_at: ClientAt) -> tuple[float, ...]:
    """Where between broadcast (0) and sent weights (1) the statistics are taken.

    The authors' code takes "theta_c" at the last interpolant, 1 - 1/U, the paper at the sent weights themselves.
    """
    if rule == "interpolated":
        return tuple(step / steps for step in range(steps))
    if rule == "geng_server":
        return (0.0,)
    return (1.0 - 1.0 / steps if client_at == "released" else 1.0,)


def rounded_counts(estimate: Tensor, total: int) -> Tensor:
    """Whole counts (classes,) that sum to `total`.

    Down to whole numbers, not below 0. Too few: one more for the classes with the largest remainders. Too many: one
    less for the classes that have any, smallest remainders first, and then from the largest counts.

    >>> rounded_counts(torch.tensor([1.7, 0.2, -0.4]), 3)
    tensor([2, 1, 0])
    """
    exact = estimate.detach().double().cpu()
    if not bool(exact.isfinite().all()):
        raise RefusedError("labels: the estimated label counts are not finite; the last layer's update gives none")
    exact = exact.clamp(-LARGEST, LARGEST)  # beyond, float64 has no remainders and int64 no sums
    counts = exact.floor().clamp(min=0)
    # Against the clipped count: a class below zero has a negative remainder and is the last to be raised.
    rest = exact - counts
    missing = total - int(counts.sum())
    most = rest.argsort(descending=True, stable=True)
    for turn in range(missing):
        counts[most[turn % len(most)]] += 1
    least = rest.argsort(stable=True)
    for at in least[counts[least] > 0][: max(-missing, 0)]:
        counts[at] -= 1
    return _cut_down(counts.long(), total) if int(counts.sum()) > total else counts.long()


def _cut_down(counts: Tensor, total: int) -> Tensor:
    """One less of the largest count (of equal ones the first), over and over until they sum to `total`. In one go: a
    learning rate that is told a million times too small makes millions of them."""
    low, high = 0, int(counts.max())
    while low < high:  # the lowest level at which to cut that leaves enough
        middle = (low + high) // 2
        low, high = (low, middle) if int(counts.clamp(max=middle).sum()) >= total else (middle + 1, high)
    cut = counts.clamp(max=low)
    cut[(cut == low).nonzero()[: int(cut.sum()) - total]] -= 1
    return cut


class LabelEstimator:
    """Label counts of the clients of one round. The noise is drawn once: all clients are measured with the same."""

    def __init__(
        self,
        setup: Setup,
        broadcast: Weights,
        rng: torch.Generator,
        dummies: int = 3000,
        client_at: ClientAt = "released",
    ) -> None:
        self.setup, self.broadcast, self.client_at = setup, broadcast, client_at
        self.network = network_of(setup, broadcast)
        like = next(iter(broadcast.tensors.values()))
        self.noise = torch.randn(dummies, *setup.input_shape, generator=rng).to(like)
        self.head = _head(self.network, broadcast, self.noise[:FIRST], setup.classes)
        self.server = self._statistics(broadcast)

    def estimate(self, sent: Weights, update: Named, samples: int, steps: int, rule: CountRule) -> Tensor:
        """Counts (classes,) float64, not rounded. `update` is (broadcast - sent) / lr: the sum over the steps."""
        at = interpolants(rule, steps, self.client_at)
        client = self.server if rule == "geng_server" else self._statistics(sent)
        pull = self.head.rows(update).double().sum(dim=1)
        found = torch.zeros_like(pull)
        for share in at:
            expected = (1 - share) * self.server.expected + share * client.expected
            features = (1 - share) * self.server.features + share * client.features
            found += samples * expected - samples * pull / (features * steps) if features else float("nan")
        return found / len(at)

    def counts(self, sent: Weights, update: Named, samples: int, steps: int, rule: CountRule) -> Tensor:
        """Whole counts (classes,) that sum to `samples`."""
        return rounded_counts(self.estimate(sent, update, samples, steps, rule), samples)

    def _statistics(self, weights: Weights) -> Statistics:
        """Sums over pieces of the noise. Only the last layer's weight carries a gradient: its first row's slope of the
        difference of two outputs is the features, whatever module the network is."""
        name, classes = self.head.weight, self.setup.classes
        expected, features = self.noise.new_zeros(classes, dtype=torch.float64), 0.0
        for part in torch.split(self.noise, PIECE):
            row = weights.tensors[name].detach().clone().requires_grad_()
            buffers = {key: value.clone() for key, value in weights.buffers.items()}
            outputs = self.network({**weights.tensors, **buffers, name: row}, part)
            apart = (outputs[:, 0] - outputs[:, 1]).sum() if classes > 2 else outputs[:, 0].sum()
            (slope,) = torch.autograd.grad(apart, [row])
            features += float(slope.flatten(1)[0].double().sum())
            expected += outputs.detach().double().softmax(dim=-1).sum(dim=0)
        return Statistics(expected / len(self.noise), features / len(self.noise))


def _head(network: Network, broadcast: Weights, noise: Tensor, classes: int) -> Head:
    try:
        return find_head(network, broadcast.tensors, broadcast.buffers, noise, classes)
    except Exception as error:  # a user's module may raise anything
        raise RefusedError(
            f"labels: no last layer with one row for each of the {classes} classes was found ({error}); "
            "use labels='known' and disclose label_counts"
        ) from error


def labels_of(counts: Sequence[int]) -> Tensor:
    """Counts to labels in order of class.

    >>> labels_of([1, 0, 2])
    tensor([0, 2, 2])
    """
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(list(counts)))
