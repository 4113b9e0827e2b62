"""The one place that makes an apparent gradient, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from fedleak.errors import RefusedError
from fedleak.learning.updates import apparent_gradient
from fedleak.types import Gradients, Message, Payload, Predictions, Round, Weights

BROADCAST = Weights({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0]])})


def of(payload: Payload, broadcast: Weights | Predictions | None = BROADCAST) -> dict[str, torch.Tensor]:
    return apparent_gradient(Round(4, broadcast, ()), Message("client-7", payload))


def test_gradients_are_taken_as_sent() -> None:
    found = of(Gradients({"a": torch.tensor([5.0, 6.0]), "b": torch.tensor([[7.0]])}))
    assert {name: value.tolist() for name, value in found.items()} == {"a": [5.0, 6.0], "b": [[7.0]]}


def test_weights_are_broadcast_minus_sent() -> None:
    """A step against the gradient: what is subtracted from the weights points the gradient's way."""
    found = of(Weights({"a": torch.tensor([0.5, 2.0]), "b": torch.tensor([[4.0]])}))
    assert {name: value.tolist() for name, value in found.items()} == {"a": [0.5, 0.0], "b": [[-1.0]]}


def test_the_order_is_that_of_the_broadcast() -> None:
    assert list(of(Gradients({"b": torch.ones(1, 1), "a": torch.ones(2)}))) == ["a", "b"]


@pytest.mark.parametrize(
    ("payload", "broadcast", "message"),
    [
        (Gradients(BROADCAST.tensors), None, "no broadcast weights"),
        (Gradients(BROADCAST.tensors), Weights({}), "no broadcast weights"),
        (Gradients({"a": torch.ones(2)}), BROADCAST, r"missing: b; not expected: none"),
        (Gradients({**BROADCAST.tensors, "c": torch.ones(1)}), BROADCAST, r"missing: none; not expected: c"),
        (Gradients({"a": torch.ones(1), "b": torch.ones(1, 1)}), BROADCAST, r"a was sent as \(1,\), expected \(2,\)"),
        (Gradients({"a": torch.tensor([1, float("nan")]), "b": torch.ones(1, 1)}), BROADCAST, "a it sent .*not finite"),
        (Weights({"a": torch.ones(2), "b": torch.tensor([[float("inf")]])}), BROADCAST, "b it sent .*not finite"),
        (Weights(BROADCAST.tensors), BROADCAST, "the client sent nothing new"),
        (Gradients({"a": torch.zeros(2), "b": torch.zeros(1, 1)}), BROADCAST, "the client sent nothing new"),
        (Predictions(torch.ones(1, 2), "logits", torch.zeros(1)), BROADCAST, "sent predictions"),
    ],
)
def test_what_is_refused(payload: Payload, broadcast: Weights | None, message: str) -> None:
    with pytest.raises(RefusedError, match=message) as refused:
        of(payload, broadcast)
    assert "round 4, client-7" in str(refused.value)
