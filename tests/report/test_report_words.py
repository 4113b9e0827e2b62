"""Numbers and names as the report prints them."""

from __future__ import annotations

import pytest

from fedleak.metrics.intervals import Interval
from fedleak.report.words import (
    HEADINGS,
    MEANINGS,
    between,
    decibel,
    knowledge,
    known_by_name,
    metric_unit,
    number,
    percent,
    plural,
    points,
    prose,
    recipe,
    setting,
)


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0 %"), (1.0, "100 %"), (0.692, "69.2 %"), (0.1, "10 %"), (0.0004, "0 %")]
)
def test_percent_prints_decimals_only_where_there_are_some(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(("share", "text"), [(0.033, "3.3 points"), (0.01, "1.0 point"), (-0.02, "−2.0 points")])
def test_points_are_percentage_points(share: float, text: str) -> None:
    assert points(share) == text


@pytest.mark.parametrize(("value", "text"), [(0.0, "0.000"), (0.25, "0.250"), (0.00012, "0.00012"), (-1.5, "−1.500")])
def test_number_keeps_three_digits_that_matter(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("items", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_prose_lists(items: list[str], text: str) -> None:
    assert prose(items) == text


def test_plural() -> None:
    assert plural(1, "seeds") == "1 seed"
    assert plural(0, "seeds") == "0 seeds"


@pytest.mark.parametrize(("value", "text"), [(31.26, "31.3"), (-11.8, "−11.8"), (-0.04, "0.0"), (0.0, "0.0")])
def test_decibels_have_a_true_minus_sign_and_no_negative_zero(value: float, text: str) -> None:
    assert decibel(value) == f"{text} dB"
    assert metric_unit("psnr", value) == text
    assert between("psnr", Interval(value, value, value, 10)) == f"{text} to {text}"


def test_names_of_knowledge_are_explained() -> None:
    assert known_by_name({"samples", "lr", "shoe_size"}) == "lr: the learning rate; samples: the number of images"
    assert known_by_name(()) == ""


def test_knowledge_says_what_was_granted() -> None:
    assert knowledge(()) == "knowing nothing but the model and what crossed the wire"
    assert knowledge(("lr", "samples")) == "knowing only the learning rate and the number of images"
    assert knowledge(("shoe_size",)) == "knowing only shoe size"


def test_intervals_lose_their_decimals_where_they_are_wide() -> None:
    assert between("recovered", Interval(1.0, 0.692, 1.0, 10)) == "69 to 100 %"
    assert between("recovered", Interval(0.5, 0.493, 0.508, 9000)) == "49.3 to 50.8 %"
    assert between("psnr", Interval(30.0, 28.13, 33.0, 10)) == "28.1 to 33.0"


def test_units_follow_the_registry() -> None:
    assert metric_unit("label_errors", 0.5) == "50 %"
    assert metric_unit("psnr", 31.26) == "31.3"
    assert metric_unit("something_new", 0.1234) == "0.123"


def test_setting_names_only_what_is_there() -> None:
    assert setting({"protocol.lr": 0.1, "x": None}, ["protocol.lr", "x", "y"]) == "protocol.lr = 0.1"


def test_a_preset_is_named_where_another_stands_beside_it() -> None:
    one, other, third = ({"attack": name, "preset": preset} for name, preset in [("a", "p"), ("a", "q"), ("b", "p")])
    assert recipe(one, [one, third]) == "a"
    assert recipe(one, [one, other, third]) == "a · preset = p"
    assert recipe({**third, "attack.tau": 3}, [third]) == "b · attack.tau = 3"


def test_every_column_of_the_numbers_is_explained() -> None:
    assert set(MEANINGS) == set(HEADINGS) - {"utility"}, "test accuracy has a section of its own, which explains it"
