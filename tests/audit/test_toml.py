"""The TOML that fedleak writes is read back by Python's own reader as the same data."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedleak.audit.toml import assign, dumps, look, merged, parse_assignment
from fedleak.errors import SpecError

keys = st.text(min_size=1, max_size=8)
plain = st.one_of(
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    st.text(max_size=12),
)
values = st.recursive(
    plain, lambda v: st.one_of(st.lists(v, max_size=3), st.dictionaries(keys, v, max_size=3)), max_leaves=6
)


@given(st.dictionaries(keys, values, max_size=5))
def test_round_trip(document: dict) -> None:
    assert tomllib.loads(dumps(document)) == document


def test_none_is_left_out() -> None:
    assert tomllib.loads(dumps({"a": None, "t": {"b": None, "c": 1}})) == {"t": {"c": 1}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=3", ("a.b", 3)),
        ("a=0.5", ("a", 0.5)),
        ("a=true", ("a", True)),
        ("a=[1, 2]", ("a", [1, 2])),
        ("a=paper", ("a", "paper")),
        ("a = 'x=y'", ("a", "x=y")),
    ],
)
def test_assignments_of_the_command_line(text: str, expected: tuple) -> None:
    assert parse_assignment(text) == expected


def test_an_assignment_without_a_value_is_refused() -> None:
    for text in ("steps", "=3"):
        with pytest.raises(SpecError, match=r"key\.path=value"):
            parse_assignment(text)


def test_assign_copies_and_merges() -> None:
    document = {"attacks": [{"name": "dlg", "steps": 1}], "protocol": {"name": "fedsgd", "lr": 1.0}}
    changed = assign(assign(document, "attacks.0.steps", 2), "protocol", {"name": "fedavg"})
    assert look(changed, "attacks.0.steps") == 2
    assert changed["protocol"] == {"name": "fedavg", "lr": 1.0}
    assert document["attacks"][0]["steps"] == 1
    assert merged({"a": {"b": 1}}, {"a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
