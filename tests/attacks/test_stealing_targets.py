"""The attacking logit: equation by equation, over rounds, scales, and public examples that change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attacks.stealing_parts import CLASSES, IMITATION, PUBLIC, images, predictions, rng, transcript
from fedleak.attacks.stealing.msa import MSA
from fedleak.attacks.stealing.targets import Observed, importance, lesson, observe
from fedleak.errors import RefusedError
from fedleak.types import Predictions


def rounds_of(*values: list[list[float]]) -> Observed:
    sent = {t: Predictions(torch.tensor(v), "probabilities", torch.arange(len(v))) for t, v in enumerate(values, 1)}
    return Observed("client", sent)


def test_the_weights_by_hand() -> None:
    # T = 5, T0 = 3, w0 = 0.5: rounds 2 to 5 with 0.5 t / 5
    assert importance(dict.fromkeys(range(1, 6)), 5, 3, 0.5) == pytest.approx({2: 0.2, 3: 0.3, 4: 0.4, 5: 0.5})
    # the window is cut at round 1
    assert importance(dict.fromkeys(range(1, 6)), 2, 3, 0.5) == pytest.approx({1: 0.25, 2: 0.5})


def test_the_target_by_hand() -> None:
    # T = 2, T0 = 1, w0 = 0.5: 0.25 p_1 + 0.5 p_2, over 0.75
    seen = rounds_of([[1.0, 0.0]], [[0.4, 0.6]])
    assert lesson(seen, 2, 1, 0.5, "literal").target.tolist()[0] == pytest.approx([0.25 + 0.2, 0.3])
    assert lesson(seen, 2, 1, 0.5, "normalised").target.tolist()[0] == pytest.approx([0.6, 0.4])


@given(reach=st.integers(0, 5), now=st.integers(1, 4), seed=st.integers(0, 20))
def test_literal_and_normalised_differ_by_a_factor_only(reach: int, now: int, seed: int) -> None:
    seen = Observed("c", {t: predictions(seed + t) for t in range(1, 5)})
    literal, plain = (lesson(seen, now, reach, 0.5, rule) for rule in ("literal", "normalised"))
    factor = sum(0.5 * t / now for t in range(max(1, now - reach), now + 1))
    assert torch.allclose(literal.target, factor * plain.target, atol=1e-6)
    assert torch.allclose(plain.target.sum(dim=-1), torch.ones(len(plain.target)))
    assert literal.rounds == tuple(range(max(1, now - reach), now + 1))


def test_without_reach_the_target_is_what_was_sent() -> None:
    seen = Observed("c", {1: predictions(0), 2: predictions(1)})
    assert torch.allclose(lesson(seen, 2, 0, 0.5, "normalised").target, predictions(1).values, atol=1e-6)


def test_logits_are_averaged_as_probabilities() -> None:
    as_logits = Observed("c", {t: predictions(t, "logits") for t in (1, 2)})
    as_shares = Observed("c", {t: predictions(t) for t in (1, 2)})
    found, expected = (lesson(seen, 2, 1, 0.5, "normalised").target for seen in (as_logits, as_shares))
    assert torch.allclose(found, expected, atol=1e-6)


def test_noise_is_averaged_before_it_is_cut_off() -> None:
    # Cut off first, the mean would be (1 + 0.5) / 2 = 0.75 and (0 + 0.5) / 2.
    seen = rounds_of([[1.4, -0.4]], [[0.2, 0.8]])
    found = lesson(seen, 2, 1, 1.0, "normalised").target.tolist()[0]
    assert found == pytest.approx([(0.5 * 1.4 + 0.2) / 1.5, (0.5 * -0.4 + 0.8) / 1.5])


def test_the_same_examples_in_another_order_are_put_in_order() -> None:
    order = torch.randperm(96, generator=rng(4))
    shuffled = Predictions(predictions(1).values[order], "probabilities", order)
    straight = Observed("c", {1: predictions(1), 2: predictions(2)})
    mixed = Observed("c", {1: shuffled, 2: predictions(2)})
    a, b = (lesson(seen, 2, 1, 0.5, "normalised").target for seen in (straight, mixed))
    assert torch.allclose(a, b, atol=1e-6)


def test_other_examples_cannot_be_averaged_and_the_reason_says_so() -> None:
    half = torch.arange(0, 96, 2)
    seen = Observed("client-3", {1: predictions(1, index=half), 2: predictions(1, index=half + 1)})
    with pytest.raises(RefusedError, match=r"client-3: rounds 1 and 2 .* different public examples .* T0 = 0"):
        lesson(seen, 2, 1, 0.5, "normalised")
    assert len(lesson(seen, 2, 0, 0.5, "normalised").index) == 48


def test_a_client_that_was_away_is_averaged_over_the_rounds_it_was_there() -> None:
    seen = Observed("c", {1: predictions(1), 4: predictions(4)})
    assert lesson(seen, 4, 2, 0.5, "normalised").rounds == (4,)
    assert lesson(seen, 4, 3, 0.5, "normalised").rounds == (1, 4)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (Predictions(torch.rand(10, CLASSES), "logits", torch.arange(12)), "the length changed"),
        (Predictions(torch.rand(10, CLASSES + 1), "logits", torch.arange(10)), "one column for each of 4 classes"),
        (Predictions(torch.rand(2, CLASSES), "logits", torch.tensor([0, 96])), "not among the 96 public ones"),
        (Predictions(torch.full((2, CLASSES), torch.nan), "logits", torch.arange(2)), "not finite"),
        (Predictions(torch.zeros(0, CLASSES), "logits", torch.arange(0)), "not among"),
        (Predictions(torch.rand(2, CLASSES), "logits", torch.tensor([0.0, 1.5])), "an index of float32"),
        (Predictions(torch.rand(2, CLASSES), "logits", torch.tensor([True, False])), "an index of bool"),
    ],
)
def test_a_message_that_cannot_be_learned_from_is_refused_with_the_reason(payload: Predictions, words: str) -> None:
    seen = transcript([{"a": predictions(0), "b": predictions(1)}, {"a": payload, "b": predictions(1)}])
    found = {one.sender: one.refused for one in observe(seen, 2)}
    assert words in found["a"]
    assert "round 2, a" in found["a"]
    assert found["b"] == ""
    assert {one.sender: one.refused for one in observe(seen, 1)} == {"a": "", "b": ""}


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("scale", ["probabilities", "logits"])
def test_labels_alone_are_learned_from_in_whatever_numbers_they_are_recorded(scale: Any, kind: torch.dtype) -> None:
    sure = torch.nn.functional.one_hot(predictions(0).values.argmax(dim=-1), CLASSES)
    sent = Predictions(sure.to(kind), scale, torch.arange(PUBLIC))
    plain = Predictions(sure.float(), scale, torch.arange(PUBLIC))
    found, expected = (
        MSA(network=IMITATION, epochs=1)(transcript([{"a": one}] * 2), rng=rng()).victims[0] for one in (sent, plain)
    )
    assert found.status == "ok", found.reason
    assert found.objective == expected.objective


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32])
def test_whole_numbers_of_any_size_say_which_examples_are_meant(kind: torch.dtype) -> None:
    order = torch.randperm(PUBLIC, generator=rng(4))
    (found,) = observe(transcript([{"a": Predictions(predictions(1).values, "probabilities", order.to(kind))}]), 1)
    assert found.refused == ""
    taught = lesson(found, 1, 0, 0.5, "normalised")
    assert torch.equal(images()[taught.index], images()[order])


def test_an_empty_history_is_an_error() -> None:
    with pytest.raises(RefusedError, match="no history"):
        observe(transcript([{}, {}]), 2)
