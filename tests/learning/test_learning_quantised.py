"""Quantised updates: decoded where they say their scale, refused with the reason where they do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedleak.errors import RefusedError
from fedleak.learning.quantised import dequantised
from fedleak.learning.updates import apparent_gradient
from fedleak.types import Gradients, Message, ModelSpec, Payload, Round, Setup, Transcript, Weights

START = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "b": torch.tensor([0.5, 0.5])}
WHOLE = {"w": torch.tensor([[10, 20], [30, 40]], dtype=torch.int8), "b": torch.tensor([-2, 4], dtype=torch.int8)}


def recorded(payload: Payload, rule: Any) -> Transcript:
    message = Message("a", payload, {"samples": 2} if rule is None else {"samples": 2, "quantisation": rule})
    return Transcript(Setup(ModelSpec("m"), (1, 1, 2), 2), (Round(1, Weights(START), (message,)),))


def only(seen: Transcript) -> Message:
    return seen.round(1).received[0]


def test_one_scale_for_all_tensors() -> None:
    """By hand: 0.1 x (10 - 2) = 0.8."""
    message = only(dequantised(recorded(Weights(WHOLE), {"scale": 0.1, "zero_point": 2})))
    assert isinstance(message.payload, Weights)
    assert torch.allclose(message.payload.tensors["w"], torch.tensor([[0.8, 1.8], [2.8, 3.8]]))
    assert message.disclosed == {"samples": 2}, "it is no longer quantised"


def test_an_update_is_added_to_what_was_broadcast_and_gradients_are_not() -> None:
    rule = {"scale": {"w": [0.1, 0.01], "b": 0.5}, "of": "update"}
    message = only(dequantised(recorded(Weights(WHOLE), rule)))
    assert isinstance(message.payload, Weights)
    assert torch.allclose(message.payload.tensors["w"], torch.tensor([[2.0, 4.0], [3.3, 4.4]]))
    assert torch.allclose(message.payload.tensors["b"], torch.tensor([-0.5, 2.5]))
    message = only(dequantised(recorded(Gradients(WHOLE), rule)))
    assert isinstance(message.payload, Gradients)
    assert torch.allclose(message.payload.tensors["b"], torch.tensor([-1.0, 2.0]))


@pytest.mark.parametrize(
    "rule",
    [
        None,
        "int8",
        {"scale": "0.1"},
        {"scale": True},
        {"scale": float("nan")},
        {"scale": {"w": 0.1}},
        {"scale": [0.1, 0.2, 0.3]},
        {"scale": []},
        {"scale": 0.1, "of": "noise"},
    ],
)
def test_what_says_no_usable_scale_is_refused_with_the_way_out(rule: Any) -> None:
    seen = dequantised(recorded(Weights(WHOLE), rule)).round(1)
    with pytest.raises(RefusedError, match=r"round 1, a: w was sent as int8: a quantised update.*quantisation="):
        apparent_gradient(seen, seen.received[0])


def test_an_update_of_other_tensors_stays_as_it_is() -> None:
    seen = dequantised(recorded(Weights({"x": WHOLE["w"]}), {"scale": 0.1, "of": "update"}))
    assert set(only(seen).payload.tensors) == {"x"}  # type: ignore[union-attr]
    assert only(seen).payload.tensors["x"].dtype == torch.int8  # type: ignore[union-attr]


def test_a_message_in_floating_point_is_left_alone() -> None:
    seen = recorded(Weights(START), {"scale": 0.1})
    assert only(dequantised(seen)) is only(seen)


@given(
    values=st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=8),
    bits=st.sampled_from([(torch.int8, 127), (torch.int16, 32767)]),
)
def test_what_was_quantised_comes_back_within_half_a_step(values: list[float], bits: tuple[torch.dtype, int]) -> None:
    kind, largest = bits
    scale = 1.0 / largest
    exact = torch.tensor(values)
    sent = Weights({"w": (exact / scale).round().to(kind)})
    message = only(dequantised(recorded(sent, {"scale": scale})))
    assert float((message.payload.tensors["w"] - exact).abs().max()) <= scale / 2 + 1e-6  # type: ignore[union-attr]
