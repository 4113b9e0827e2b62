"""Cluster bootstrap: its distribution in closed form, its coverage on nested data, its edges."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from fedleak.errors import RefusedError, ShapeError
from fedleak.metrics import bootstrap_means, interval, paired_difference, share_interval


def nested(rng: np.random.Generator, seeds: int, clients: int, images: int, spread: tuple[float, float, float]):
    """Values with mean 0 and a standard deviation at each level, and their clusters."""
    of_seed = rng.normal(0, spread[0], (seeds, 1, 1))
    of_client = rng.normal(0, spread[1], (seeds, clients, 1))
    values = of_seed + of_client + rng.normal(0, spread[2], (seeds, clients, images))
    where = [(s, f"client-{c}") for s in range(seeds) for c in range(clients) for _ in range(images)]
    return values.ravel().tolist(), where


def test_variance_of_the_resampled_means_in_closed_form() -> None:
    """Balanced data: the three levels add up, each by its population variance over the number of units drawn."""
    seeds, clients, images = 4, 3, 5
    values, where = nested(np.random.default_rng(1), seeds, clients, images, (1.0, 2.0, 3.0))
    block = np.array(values).reshape(seeds, clients, images)
    of_client = block.mean(axis=2)
    of_seed = of_client.mean(axis=1)
    expected = (
        of_seed.var() / seeds
        + of_client.var(axis=1).mean() / (seeds * clients)
        + block.var(axis=2).mean() / (seeds * clients * images)
    )
    means = bootstrap_means(values, where, draws=40_000, rng=2)
    assert means.var() == pytest.approx(expected, rel=0.03)
    assert means.mean() == pytest.approx(block.mean(), abs=4 * np.sqrt(expected / 40_000))


@pytest.mark.parametrize("clients_of_b", [(0, 0, 0), (0, 1, 2), (0, 1, 1)])
def test_uneven_clusters_in_closed_form(clients_of_b: tuple[int, ...]) -> None:
    """Seed A: one image of 0. Seed B: three images of 1, of one client or three. Drawn AA, AB or BA, BB: 0, 3/4, 1.

    Of two clients with one and two images, two to four images are drawn, and the mean of AB is 2/3, 3/4 or 4/5.
    """
    where = [("A", 0), *(("B", client) for client in clients_of_b)]
    means = bootstrap_means([0, 1, 1, 1], where, draws=8000, rng=3)
    if len(set(clients_of_b)) == 2:
        counts = Counter(np.round(means, 12).tolist())
        assert set(counts) == {0.0, round(2 / 3, 12), 0.75, 0.8, 1.0}
        assert counts[0.75] / 8000 == pytest.approx(0.25, abs=0.02)
        assert counts[0.8] / 8000 == pytest.approx(0.125, abs=0.02)
        return
    counts = Counter(means.tolist())
    assert set(counts) == {0.0, 0.75, 1.0}
    assert counts[0.75] / 8000 == pytest.approx(0.5, abs=0.02)
    assert counts[0.0] / 8000 == pytest.approx(0.25, abs=0.02)


def test_clients_are_drawn_within_their_seed_only() -> None:
    """Two seeds of the same mean: if clients of different seeds mixed, other means would turn up."""
    values, where = [0, 2, 1, 1], [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
    counts = Counter(bootstrap_means(values, where, draws=8000, rng=4).tolist())
    # Each drawn seed contributes 1 (seed 1) or 0, 1, 1, 2 (seed 0); exact probabilities of the mean of two.
    one_seed = {0.0: 1 / 8, 1.0: 6 / 8, 2.0: 1 / 8}
    exact: Counter[float] = Counter()
    for a, p in one_seed.items():
        for b, q in one_seed.items():
            exact[(a + b) / 2] += p * q  # type: ignore[assignment]
    assert set(counts) == set(exact)
    for value, probability in exact.items():
        assert counts[value] / 8000 == pytest.approx(probability, abs=0.02)


@pytest.fixture(scope="module")
def coverage() -> dict[str, float]:
    """How often each interval contains the true mean 0, over 250 simulated audits of 12 seeds, 4 clients, 6 images."""
    rng = np.random.default_rng(5)
    hits = Counter[str]()
    for repeat in range(250):
        values, where = nested(rng, 12, 4, 6, (1.0, 1.0, 1.0))
        each_for_itself = [(0, i) for i in range(len(values))]
        by_client = [(0, cluster) for cluster in where]
        for name, clusters in (("cluster", where), ("pooled", each_for_itself), ("clients only", by_client)):
            made = interval(values, clusters, draws=400, rng=repeat)
            hits[name] += made.low <= 0.0 <= made.high
    return {name: count / 250 for name, count in hits.items()}


def test_the_cluster_bootstrap_covers(coverage: dict[str, float]) -> None:
    assert 0.90 <= coverage["cluster"] <= 0.985


def test_pooling_understates(coverage: dict[str, float]) -> None:
    assert coverage["pooled"] < 0.60
    assert coverage["pooled"] + 0.1 < coverage["clients only"] < coverage["cluster"] - 0.1


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    values, where = nested(np.random.default_rng(6), 3, 4, 2, (1.0, 1.0, 1.0))
    first, again = (interval(values, where, rng=torch.Generator().manual_seed(7)) for _ in range(2))
    assert first == again
    assert first != interval(values, where, rng=torch.Generator().manual_seed(8))
    assert interval(values, where, rng=9) == interval(values, where, rng=9)


def test_a_generator_is_advanced_and_the_global_one_is_not() -> None:
    values, where = nested(np.random.default_rng(6), 3, 4, 2, (1.0, 1.0, 1.0))
    before = torch.random.get_rng_state()
    rng = torch.Generator().manual_seed(7)
    assert interval(values, where, rng=rng) != interval(values, where, rng=rng)
    assert torch.equal(before, torch.random.get_rng_state())


def test_chunks_of_draws_are_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    values, where = nested(np.random.default_rng(6), 3, 4, 2, (1.0, 1.0, 1.0))
    monkeypatch.setattr("fedleak.metrics.intervals._CHUNK", 24 * 7)
    means = bootstrap_means(values, where, draws=100, rng=1)
    assert means.shape == (100,)
    assert len(set(means.tolist())) > 90


def test_mean_level_and_size() -> None:
    values, where = nested(np.random.default_rng(10), 5, 4, 2, (1.0, 1.0, 1.0))
    wide, narrow = (interval(values, where, level=level, rng=1) for level in (0.95, 0.5))
    assert wide.mean == narrow.mean == pytest.approx(np.mean(values))
    assert wide.low < narrow.low < narrow.mean < narrow.high < wide.high
    assert wide.n == 40
    assert wide.resampled == ("seed", "client", "image")


@pytest.mark.parametrize(("level", "deviations"), [(0.95, 1.960), (0.90, 1.645), (0.5, 0.674)])
def test_both_ends_leave_out_half_of_the_rest(level: float, deviations: float) -> None:
    """The mean of many independent clients is normal: its ends are so many standard errors away, on either side."""
    values = np.random.default_rng(3).normal(0, 2, 400)
    made = interval(values.tolist(), [(0, i) for i in range(400)], level=level, draws=10_000, rng=1)
    half = deviations * values.std() / 20
    assert made.mean - made.low == pytest.approx(half, rel=0.06)
    assert made.high - made.mean == pytest.approx(half, rel=0.06)


def test_one_client_with_several_images_is_enough_to_resample_images() -> None:
    assert interval([0.0, 1.0, 2.0], [(0, "a"), (0, "a"), (0, "b")], rng=1).resampled == ("client", "image")


def test_one_seed_resamples_clients_and_says_so() -> None:
    made = interval([0.0, 1.0, 2.0, 3.0], [(0, i) for i in range(4)], rng=1)
    assert made.resampled == ("client",)
    assert not made.degenerate
    assert made.low < 1.5 < made.high


def test_one_value_has_no_width_and_is_flagged() -> None:
    made = interval([3.5], [(0, "a")], rng=1)
    assert (made.mean, made.low, made.high, made.n) == (3.5, 3.5, 3.5, 1)
    assert made.degenerate


def test_paired_differences_cancel_what_the_pairs_share() -> None:
    values, where = nested(np.random.default_rng(11), 6, 4, 2, (3.0, 3.0, 3.0))
    better = [value + 0.5 for value in values]
    made = paired_difference(better, values, where, rng=1)
    assert made.mean == pytest.approx(0.5)
    assert made.low == pytest.approx(0.5)
    assert made.high == pytest.approx(0.5)
    apart = interval(better, where, rng=1)
    assert apart.high - apart.low > 1.0


def test_ten_of_ten_is_not_certainty() -> None:
    """Clopper and Pearson for 10 of 10 at 95 %: 0.6915 to 1."""
    where = [(0, i) for i in range(10)]
    everything = share_interval([1.0] * 10, where, rng=1)
    assert (everything.low, everything.high) == (pytest.approx(0.6915, abs=1e-4), 1.0)
    none = share_interval([0.0] * 10, where, rng=1)
    assert (none.low, none.high) == (0.0, pytest.approx(1 - 0.6915, abs=1e-4))


def test_many_images_of_few_clients_are_few_trials() -> None:
    where = [(0, i % 2) for i in range(100)]
    assert share_interval([1.0] * 100, where, rng=1).low == pytest.approx(0.025**0.5)


def test_one_finding_about_many_people_has_people_for_trials() -> None:
    """200 people of one federation, none recognised: as where one is, people are what is resampled."""
    none = share_interval([0.0] * 200, [(0, "federation")] * 200, rng=1)
    assert (none.low, none.high) == (0.0, pytest.approx(1 - 0.025 ** (1 / 200)))
    assert none.resampled == ("image",)


def test_a_mixed_share_is_the_cluster_bootstrap() -> None:
    where = [(0, i) for i in range(8)]
    values = [1.0, 0.0] * 4
    assert share_interval(values, where, rng=1) == interval(values, where, rng=1)


@pytest.mark.parametrize("values", [(0.0, 1.0), (-1.0, 0.0, 1.0)])
def test_many_images_of_few_values_are_drawn_as_counts(values: tuple[float, ...]) -> None:
    """Uneven clusters, and the closed form of the variance that holds for single images too."""
    rng = np.random.default_rng(4)
    sizes = {(0, "a"): 300, (0, "b"): 250, (1, "a"): 400}
    drawn = {at: rng.choice(values, size) for at, size in sizes.items()}
    where = [at for at, size in sizes.items() for _ in range(size)]
    means = bootstrap_means(np.concatenate(list(drawn.values())).tolist(), where, draws=20_000, rng=5)
    assert means.shape == (20_000,)
    assert means.min() >= min(values)
    assert means.max() <= max(values)
    alone = drawn[1, "a"]
    one = bootstrap_means(alone.tolist(), [(1, "a")] * 400, draws=20_000, rng=5)
    assert one.mean() == pytest.approx(alone.mean(), abs=4 * np.sqrt(alone.var() / 400 / 20_000))
    assert one.var() == pytest.approx(alone.var() / 400, rel=0.04)
    # A client of its own seed and one of two, image by image, against the same by counts.
    a, b, c = (drawn[at].mean() for at in sizes)
    expected = []
    for seeds in ((0, 0), (0, 1), (1, 0), (1, 1)):
        pools = [[(a, 300), (b, 250)] if seed == 0 else [(c, 400)] for seed in seeds]
        choices = [one for pool in pools for one in ([pool, pool] if len(pool) == 2 else [pool])]
        expected.append(np.mean([_ratio(picked) for picked in itertools.product(*choices)]))
    assert means.mean() == pytest.approx(np.mean(expected), abs=0.004)


def _ratio(picked: tuple[tuple[float, int], ...]) -> float:
    return sum(mean * n for mean, n in picked) / sum(n for _, n in picked)


def test_errors() -> None:
    with pytest.raises(ShapeError, match="clusters=1"):
        interval([1.0, 2.0], [(0, 0)], rng=1)
    with pytest.raises(ShapeError, match="pair"):
        paired_difference([1.0], [1.0, 2.0], [(0, 0)], rng=1)
    for values in ([], [float("nan")]):
        with pytest.raises(RefusedError, match="values"):
            interval(values, [(0, 0)] * len(values), rng=1)
    with pytest.raises(RefusedError, match=r"level=95"):
        interval([1.0], [(0, 0)], level=95, rng=1)
    with pytest.raises(RefusedError, match=r"draws=0"):
        interval([1.0], [(0, 0)], draws=0, rng=1)
    with pytest.raises(RefusedError, match=r"0\.5"):
        share_interval([0.5, 1.0], [(0, 0), (0, 1)], rng=1)
