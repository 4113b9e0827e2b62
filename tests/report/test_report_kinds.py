"""Which kind of finding a row holds, how well it did by its own measure, and how bad that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from findings import copy, counts, people

from fedleak.audit.rows import Row
from fedleak.report.arms import arms_of
from fedleak.report.kinds import Kind, kind_of, one_of, things
from fedleak.report.levels import above_a_guess, copied_share, level_of, strongest
from fedleak.report.tables import Summary, summary
from fedleak.report.verdict import judge

Make = Callable[..., Row]


def one(*rows: Row) -> Summary:
    (found,) = summary(rows)
    return found


@pytest.mark.parametrize(
    ("scores", "guesses", "kind"),
    [
        (("psnr", "recovered", "label_errors"), ("mean_image",), "images"),
        (("ssim",), ("mean_image",), "images"),
        (("label_errors",), ("mean_image", "noise"), "images"),
        (("attack_accuracy", "ssim", "nearest_public"), ("prior", "noise"), "classes"),
        (("attack_accuracy",), ("noise",), "classes"),
        (("attack_accuracy", "victim_accuracy", "fidelity"), ("commonest",), "model"),
        (("attack_accuracy",), ("commonest",), "model"),
        (("label_errors",), ("evenly", "commonest"), "counts"),
        ((), (), "images"),
    ],
)
def test_the_scores_say_what_was_judged(
    make_row: Make, scores: Sequence[str], guesses: Sequence[str], kind: Kind
) -> None:
    values: Mapping[str, list[float]] = {name: [1.0] for name in scores}
    assert kind_of([make_row({}, values, baselines=dict.fromkeys(guesses, values))]) == kind


def test_words() -> None:
    assert (things("classes", "lfw"), one_of("classes", "lfw")) == ("people", "person")
    assert (things("classes", "digits"), one_of("classes", "digits")) == ("classes", "class")
    assert (things("images", "digits"), things("counts", "orl")) == ("digits", "labels")


def test_success_of_label_counts_is_the_share_that_is_right(make_row: Make) -> None:
    found = one(counts(make_row, wrong=3))
    errors = found.scores["label_errors"]
    assert found.success is not None
    assert found.success_null is not None
    assert (found.hits, found.images, found.things) == (47, 50, "labels")
    assert (found.success.mean, found.success_null.mean) == (pytest.approx(0.94), pytest.approx(0.2))
    assert (found.success.low, found.success.high) == (1 - errors.high, 1 - errors.low)


def test_people_are_the_independent_trials_where_all_clients_are_attacked_together(make_row: Make) -> None:
    found = one(people(make_row, hits=20))
    assert found.success is not None
    assert found.success.low == pytest.approx(0.025 ** (1 / 20))  # not 0.025, as one federation would give
    assert found.clients == 0  # nobody is named


def test_the_victims_accuracy_has_no_guess(make_row: Make) -> None:
    found = one(copy(make_row, right=63, victim=65))
    assert set(found.nulls) == {"attack_accuracy", "fidelity"}


@pytest.mark.parametrize(
    ("hits", "level"),
    [(0, "unrecovered"), (2, "unrecovered"), (3, "unrecovered"), (7, "partial"), (9, "partial"), (10, "severe")],
)
def test_pictures_must_beat_the_prior(make_row: Make, hits: int, level: str) -> None:
    assert level_of(one(people(make_row, hits))) == level


def test_pictures_must_beat_the_best_guess_not_only_the_prior(make_row: Make) -> None:
    row = people(make_row, hits=10)
    strangers = {"attack_accuracy": [1.0] * 12 + [0.0] * 8}
    changed = make_row(row.where, row.scores, baselines={**row.baselines, "other_client": strangers})
    assert level_of(one(changed)) == "unrecovered"


@pytest.mark.parametrize(
    ("right", "victim", "share", "level"),
    [
        (63, 65, 53 / 55, "severe"),
        (38, 66, 0.5, "severe"),
        (30, 65, 20 / 55, "partial"),
        (12, 65, 2 / 55, "unrecovered"),  # above the guess, but so is chance
        (8, 65, -2 / 55, "unrecovered"),
    ],
)
def test_a_copy_is_measured_from_the_guess_to_the_victim(
    make_row: Make, right: int, victim: int, share: float, level: str
) -> None:
    found = one(copy(make_row, right, victim))
    assert copied_share(found) == pytest.approx(share)
    assert level_of(found) == level


def test_a_victim_that_learned_nothing_has_nothing_to_copy(make_row: Make) -> None:
    found = one(copy(make_row, right=40, victim=10))
    assert (copied_share(found), level_of(found)) == (0.0, "partial")


def test_a_copy_without_its_victim_is_measured_against_a_perfect_model(make_row: Make) -> None:
    row = copy(make_row, right=55, victim=65)
    alone = make_row(row.where, {"attack_accuracy": row.scores["attack_accuracy"]}, baselines=row.baselines)
    assert copied_share(one(alone)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("wrong", "level"), [(0, "partial"), (39, "partial"), (40, "unrecovered"), (50, "unrecovered")]
)
def test_label_counts_are_never_severe(make_row: Make, wrong: int, level: str) -> None:
    found = one(counts(make_row, wrong))
    assert level_of(found) == level
    assert above_a_guess(found) is (level == "partial")


def test_the_strongest_of_several_kinds_is_the_worst(make_row: Make) -> None:
    image = make_row({"client": "a", "protocol": "fedmd"}, {"recovered": [0.0], "psnr": [9.0]})
    rows = [image, people(make_row, hits=5), copy(make_row, right=63, victim=65), copy(make_row, 50, 65, attack="x")]
    found = strongest(summary(rows))
    assert found is not None
    assert found.where["attack"] == "msa"
    (arm,) = arms_of(summary(rows), rows, lambda row: {})
    assert arm.kinds == ("images", "classes", "model")
    assert arm.strongest is not None
    assert arm.strongest.kind == "model"
    pictures = arm.strongest_of("classes")
    assert pictures is not None
    assert pictures.hits == 5
    assert arm.strongest_of("counts") is None


def test_an_attack_that_its_own_prior_outdoes_does_not_hide_one_without_a_prior(make_row: Make) -> None:
    """Masked twins of LFW are public: the prior alone knows everybody, and PLI gets a little less."""
    with_prior, without = (
        people(make_row, hits=18, prior=20),
        people(make_row, hits=15, prior=1, attack="ptbi"),
    )
    found = strongest(summary([with_prior, without]))
    assert found is not None
    assert found.where["attack"] == "ptbi"
    assert level_of(found) == "severe"
    verdict = judge(arms_of(summary([with_prior, without]), [with_prior, without], lambda row: {}))
    assert verdict.level == "severe"
    assert "ptbi recovered pictures of 15 of 20 people" in verdict.sentences[0]
    (alone,) = summary([with_prior])
    assert strongest([alone]) is alone


def test_plain_data_says_what_it_is(make_row: Make) -> None:
    found = one(counts(make_row, wrong=3)).as_dict()
    assert (found["kind"], found["success"]["mean"]) == ("counts", pytest.approx(0.94))
    assert found["guess"] == {"name": "evenly", "mean": pytest.approx(0.2)}
