"""Rows to summaries: what is grouped, what is averaged, what a reader is told beside it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedleak.audit.rows import Row
from fedleak.audit.store import RunFolder
from fedleak.metrics.intervals import share_interval
from fedleak.report.arms import arms_of
from fedleak.report.tables import is_defended, ordered, summary, swept, utility_rows

Make = Callable[..., Row]


def test_one_summary_per_protocol_defense_and_attack(faces_run: Path) -> None:
    found = summary(RunFolder(faces_run).rows())
    assert len(found) == 2 * 4 * 2
    first = found[0]
    assert (first.where["protocol"], first.where["defense"], first.where["attack"]) == ("fedsgd", "none", "dlg")
    assert (first.images, first.clients, first.seeds) == (10, 10, (0,))


def test_the_mean_is_over_images_and_the_interval_is_the_cluster_bootstrap(make_row: Make) -> None:
    rows = [make_row({"client": f"c{c}"}, {"recovered": [1.0, 0.0, 0.0, float(c > 1)]}) for c in range(4)]
    (found,) = summary(rows)
    assert found.recovered is not None
    assert found.recovered.mean == pytest.approx(6 / 16)
    assert (found.recovered_images, found.images) == (6, 16)
    assert 0 < found.recovered.low < 6 / 16 < found.recovered.high < 1
    assert found.recovered.resampled == ("client", "image")


def test_all_recovered_has_the_exact_binomial_bound_and_not_a_width_of_zero(make_row: Make) -> None:
    rows = [make_row({"client": f"c{c}"}, {"recovered": [1.0]}) for c in range(10)]
    (found,) = summary(rows)
    assert found.recovered is not None
    expected = share_interval([1.0] * 10, [(0, c) for c in range(10)], rng=0)
    assert (found.recovered.low, found.recovered.high) == (expected.low, expected.high)
    assert found.recovered.low == pytest.approx(0.025**0.1)


def test_seeds_rounds_and_clients_are_pooled_and_swept_settings_are_not(make_row: Make) -> None:
    rows = [
        make_row({"seed": seed, "round": round_, "client": client, "protocol.lr": lr}, {"psnr": [20.0]})
        for seed in (0, 1)
        for round_ in (1, 2)
        for client in ("a", "b")
        for lr in (0.1, 0.01)
    ]
    found = summary(rows)
    assert [(s.where["protocol.lr"], s.images) for s in found] == [(0.01, 8), (0.1, 8)]
    assert swept(found) == ["protocol.lr"]


def test_a_strength_that_the_defense_is_named_after_is_not_named_again(make_row: Make) -> None:
    def rows(name: str) -> list[Row]:
        free = make_row({"defense": "none"}, {"psnr": [1.0]})
        return [
            free,
            *(make_row({"defense": name.format(s), "defenses.0.sigma": s}, {"psnr": [1.0]}) for s in (0.1, 1.0)),
        ]

    assert swept(summary(rows("gaussian(sigma={})"))) == []
    assert swept(summary(rows("shipped"))) == ["defenses.0.sigma"]


def test_federations_that_share_only_some_settings_keep_their_own_test_accuracy(
    make_row: Make, make_utility: Make
) -> None:
    """A sweep over whole tables of one protocol: a key that one table has tells it from the other."""
    preset = {"protocol": "fedmd", "protocol.rounds": 3, "protocol.preset": "adamsa"}
    drawn = {"protocol": "fedmd", "protocol.rounds": 3, "protocol.alignment": 50}
    rows: list[Row] = []
    for place, free, defended in ((preset, 4, 3), (drawn, 2, 0)):
        for defense, right in (("none", free), ("label_only", defended)):
            rows.append(make_utility(defense, [1.0] * right + [0.0] * (4 - right), **place))
            rows.append(make_row({"defense": defense, "attack": "msa", **place}, {"attack_accuracy": [1.0, 0.0]}))
    found = summary(rows)
    assert swept(found) == ["protocol.alignment", "protocol.preset"]
    known = {(s.where.get("protocol.preset"), s.where["defense"]): s.utility and s.utility.mean for s in found}
    assert known == {
        ("adamsa", "none"): 1.0,
        ("adamsa", "label_only"): 0.75,
        (None, "none"): 0.5,
        (None, "label_only"): 0.0,
    }
    costs = {arm.where.get("protocol.preset"): arm.cost for arm in arms_of(found, rows, lambda row: {}) if arm.defended}
    assert {preset: cost and cost.mean for preset, cost in costs.items()} == {"adamsa": 0.25, None: 0.5}


def test_a_protocols_constants_are_not_swept(make_row: Make) -> None:
    rows = [
        make_row({"protocol": "fedsgd", "protocol.rounds": 100}, {"psnr": [1.0]}),
        make_row({"protocol": "fedavg", "protocol.rounds": 60}, {"psnr": [1.0]}),
    ]
    assert swept(summary(rows)) == []


def test_the_null_is_the_best_guess_in_the_direction_of_the_metric(make_row: Make) -> None:
    guesses = {"mean_image": {"psnr": [14.0], "mse": [0.04]}, "noise": {"psnr": [8.0], "mse": [0.16]}}
    (found,) = summary([make_row({"client": "a"}, {"psnr": [40.0], "mse": [1e-4]}, baselines=guesses)])
    assert (found.nulls["psnr"].name, found.nulls["psnr"].mean) == ("mean_image", 14.0)
    assert (found.nulls["mse"].name, found.nulls["mse"].mean) == ("mean_image", 0.04)


def test_utility_belongs_to_its_arm_and_counts_once(make_row: Make, make_utility: Make) -> None:
    attacked = [make_row({"client": "a", "defense": d}, {"psnr": [1.0]}) for d in ("none", "clip(norm=1)")]
    correct = [1.0, 1.0, 1.0, 0.0]
    same_federation_twice = [make_utility("none", correct), make_utility("none", correct)]
    rows = [*attacked, *same_federation_twice, make_utility("clip(norm=1)", [1.0, 0.0, 0.0, 0.0])]
    free, clipped = summary(rows)
    assert free.utility is not None
    assert clipped.utility is not None
    assert (free.utility.mean, free.utility.n) == (0.75, 4)
    assert clipped.utility.mean == 0.25
    assert len(utility_rows(rows)) == 2


def test_failed_victims_are_counted_apart(make_row: Make) -> None:
    rows = [
        make_row({"client": "a"}, {"recovered": [1.0], "psnr": [40.0]}),
        make_row({"client": "b"}, {}, status="failed", reason="broke"),
        make_row({"client": "c"}, {"recovered": [0.0], "psnr": [5.0]}, status="diverged"),
    ]
    (found,) = summary(rows)
    assert found.status == {"diverged": 1, "failed": 1, "ok": 1}
    assert (found.images, found.recovered_images) == (2, 1)


def test_nothing_judged_has_no_scores(make_row: Make) -> None:
    (found,) = summary([make_row({}, {}, status="refused", reason="no")])
    assert (found.images, found.recovered, dict(found.scores)) == (0, None, {})
    assert summary([]) == []


def test_as_dict_is_plain_data(faces_run: Path) -> None:
    import json

    document = json.loads(json.dumps([s.as_dict() for s in summary(RunFolder(faces_run).rows())]))
    best = next(d for d in document if d["where"]["attack"] == "dlm_plus")
    assert best["scores"]["recovered"]["mean"] == 1.0
    assert best["nulls"]["psnr"]["name"] == "mean_image"
    assert best["status"] == {"ok": 10}


def test_numbers_in_names_are_compared_as_numbers(make_row: Make) -> None:
    names = ["gaussian(sigma=0.01)", "gaussian(sigma=1e-05)", "none", "gaussian(sigma=0.001)"]
    rows = [make_row({"defense": name, "client": f"client-{c}"}, {"psnr": [1.0]}) for name in names for c in (10, 9)]
    found = ordered(rows)
    assert [row.where["client"] for row in found[:2]] == ["client-9", "client-10"]
    assert [row.where["defense"] for row in found[::2]] == [
        "none",
        "gaussian(sigma=1e-05)",
        "gaussian(sigma=0.001)",
        "gaussian(sigma=0.01)",
    ]


@given(shuffle=st.integers(0, 2**32))
def test_the_order_of_rows_does_not_matter(faces_run: Path, shuffle: int) -> None:
    rows = RunFolder(faces_run).rows()
    mixed = list(rows)
    random.Random(shuffle).shuffle(mixed)
    assert ordered(mixed) == ordered(rows)


@pytest.mark.parametrize(("name", "answer"), [("none", False), ("identity", False), (None, False), ("clip", True)])
def test_is_defended(name: str | None, answer: bool) -> None:
    assert is_defended({"defense": name}) is answer
