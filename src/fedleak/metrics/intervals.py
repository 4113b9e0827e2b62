"""Confidence intervals that respect how the numbers came about: the cluster bootstrap.

Images of one client share a model update, clients of one seed share a federation. Pooling images as if they were
independent understates the uncertainty, so seeds are resampled first, then clients within each drawn seed, then images
within each drawn client. Client names are nested in seeds: client 3 of seed 0 is not client 3 of seed 1.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedleak.errors import RefusedError, ShapeError

__all__ = ["Cluster", "Interval", "bootstrap_means", "interval", "paired_difference", "share_interval"]

Cluster = tuple[Hashable, Hashable]
"""(seed, client) of one value."""

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

_CHUNK = 2_000_000
_MANY, _FEW = 200, 16
"""From so many images of a client on, with at most so many different values, their counts are drawn."""


@dataclass(frozen=True)
class Interval:
    """A mean with its interval.

    `resampled` names the levels that had more than one member. Without "seed" or "client" among them the interval
    speaks only for that federation or client; where it is empty there was nothing to resample, and low = high = mean.
    """

    mean: float
    low: float
    high: float
    n: int
    resampled: tuple[str, ...] = ()

    @property
    def degenerate(self) -> bool:
        """True where the width says nothing about the uncertainty."""
        return not self.resampled


def interval(
    values: Sequence[float],
    clusters: Sequence[Cluster],
    *,
    level: float = 0.95,
    draws: int = 2000,
    rng: torch.Generator | int,
) -> Interval:
    """The mean of all values and its percentile interval under the cluster bootstrap.

    `clusters[i]` is the (seed, client) of `values[i]`. The same generator state or seed gives the same interval.
    """
    if not 0.0 < level < 1.0:
        raise RefusedError(f"level={level}: must lie between 0 and 1; 0.95 is usual")
    if draws < 1:
        raise RefusedError(f"draws={draws}: at least one is needed; 2000 is usual")
    table = _Table.of(values, clusters)
    mean = float(np.mean(np.asarray(values, dtype=np.float64)))
    if not table.levels:
        return Interval(mean, mean, mean, len(values))
    means = table.resampled_means(draws, _numpy(rng))
    low, high = np.quantile(means, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return Interval(mean, float(low), float(high), len(values), table.levels)


def share_interval(
    values: Sequence[float],
    clusters: Sequence[Cluster],
    *,
    level: float = 0.95,
    draws: int = 2000,
    rng: torch.Generator | int,
) -> Interval:
    """`interval` for values that are 0 or 1, and honest where all agree.

    Resampling ten successes gives ten successes: a bootstrap interval of width zero. There the open end is the exact
    binomial one (Clopper and Pearson) with the clients, not the images, as the independent trials; of a single client
    of a single seed with its images, which is what the bootstrap resamples there too.
    """
    made = interval(values, clusters, level=level, draws=draws, rng=rng)
    strange = [value for value in values if value not in (0.0, 1.0)]
    if strange:
        raise RefusedError(f"values hold {strange[0]}: a share is made of 0 and 1; use interval() for other numbers")
    if made.degenerate or made.mean not in (0.0, 1.0):
        return made
    trials = len(set(clusters)) if made.resampled != ("image",) else len(values)
    far = ((1.0 - level) / 2.0) ** (1.0 / trials)
    low, high = (far, 1.0) if made.mean == 1.0 else (0.0, 1.0 - far)
    return Interval(made.mean, low, high, made.n, made.resampled)


def paired_difference(
    a: Sequence[float],
    b: Sequence[float],
    clusters: Sequence[Cluster],
    *,
    level: float = 0.95,
    draws: int = 2000,
    rng: torch.Generator | int,
) -> Interval:
    """The interval of the mean of a - b, where a[i] and b[i] judge the same example: both are resampled together."""
    if len(a) != len(b):
        raise ShapeError(f"a has {len(a)} values, b has {len(b)}: a pair is needed for every example")
    difference = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    return interval(difference.tolist(), clusters, level=level, draws=draws, rng=rng)


def bootstrap_means(
    values: Sequence[float], clusters: Sequence[Cluster], *, draws: int, rng: torch.Generator | int
) -> Floats:
    """The mean of every resample, (draws,): the sum of the drawn images over their number."""
    return _Table.of(values, clusters).resampled_means(draws, _numpy(rng))


@dataclass(frozen=True, eq=False)
class _Table:
    """Values as a padded block (seeds, clients, images) with the number of clients and images that are really there."""

    block: Floats
    clients: Whole
    images: Whole

    @staticmethod
    def of(values: Sequence[float], clusters: Sequence[Cluster]) -> _Table:
        if len(values) != len(clusters):
            raise ShapeError(f"values={len(values)}, clusters={len(clusters)}: every value needs its (seed, client)")
        if len(values) == 0:
            raise RefusedError("values=(): an interval needs at least one value")
        if not np.isfinite(np.asarray(values, dtype=np.float64)).all():
            raise RefusedError("values hold NaN or infinity: leave such examples out, and say so")
        groups: dict[Hashable, dict[Hashable, list[float]]] = {}
        for value, (seed, client) in zip(values, clusters, strict=True):
            groups.setdefault(seed, {}).setdefault(client, []).append(float(value))
        seeds = [list(of_seed.values()) for of_seed in groups.values()]
        widest = max(len(of_seed) for of_seed in seeds)
        longest = max(len(of_client) for of_seed in seeds for of_client in of_seed)
        block = np.zeros((len(seeds), widest, longest))
        images = np.zeros((len(seeds), widest), dtype=np.int64)
        for s, of_seed in enumerate(seeds):
            for c, of_client in enumerate(of_seed):
                block[s, c, : len(of_client)] = of_client
                images[s, c] = len(of_client)
        return _Table(block, np.array([len(of_seed) for of_seed in seeds], dtype=np.int64), images)

    @property
    def levels(self) -> tuple[str, ...]:
        several = {
            "seed": len(self.clients) > 1,
            "client": bool((self.clients > 1).any()),
            "image": bool((self.images > 1).any()),
        }
        return tuple(name for name, there in several.items() if there)

    def resampled_means(self, draws: int, rng: np.random.Generator) -> Floats:
        if self.block.shape[2] >= _MANY and len(values := np.unique(self.block)) <= _FEW:
            return self._means_by_counts(values, draws, rng)
        at_once = max(1, _CHUNK // self.block.size)
        parts = [self._means(min(at_once, draws - done), rng) for done in range(0, draws, at_once)]
        return np.concatenate(parts)

    def _means(self, draws: int, rng: np.random.Generator) -> Floats:
        seeds, widest, longest = self.block.shape
        seed = rng.integers(0, seeds, size=(draws, seeds, 1))
        client_count = self.clients[seed]
        client = (rng.random((draws, seeds, widest)) * client_count).astype(np.int64)
        # As many clients as the drawn seed has, as many images as the drawn client has; the padding weighs nothing.
        image_count = np.where(np.arange(widest) < client_count, self.images[seed, client], 0)[..., None]
        image = (rng.random((draws, seeds, widest, longest)) * image_count).astype(np.int64)
        drawn = self.block[seed[..., None], client[..., None], image] * (np.arange(longest) < image_count)
        means: Floats = drawn.sum(axis=(1, 2, 3)) / image_count.sum(axis=(1, 2, 3))
        return means

    def _means_by_counts(self, values: Floats, draws: int, rng: np.random.Generator) -> Floats:
        """The same distribution for a few values, such as right and wrong: drawing n images with replacement is
        drawing how often each value comes, a multinomial. A thousand times cheaper with thousands of images."""
        seeds, widest, longest = self.block.shape
        there = np.arange(longest) < self.images[..., None]
        held = np.stack([((self.block == value) & there).sum(axis=2) for value in values], axis=-1)
        seed = rng.integers(0, seeds, size=(draws, seeds, 1))
        client_count = self.clients[seed]
        client = (rng.random((draws, seeds, widest)) * client_count).astype(np.int64)
        left = np.where(np.arange(widest) < client_count, self.images[seed, client], 0)
        total, number = np.zeros(draws), left.sum(axis=(1, 2))
        others = self.images[seed, client]
        for at, value in enumerate(values):
            own = held[seed, client, at]
            count = rng.binomial(left, np.divide(own, others, out=np.zeros(own.shape), where=others > 0))
            total += value * count.sum(axis=(1, 2))
            left, others = left - count, others - own
        means: Floats = total / number
        return means


def _numpy(rng: torch.Generator | int) -> np.random.Generator:
    if isinstance(rng, torch.Generator):
        return np.random.default_rng(int(torch.randint(0, 2**62, (1,), generator=rng)))
    return np.random.default_rng(rng)
