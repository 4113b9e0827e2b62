"""Noise, clipping and sparsification of a message: statistics, exact counts and identities."""

from __future__ import annotations

import math

import pydantic
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedleak.defenses import Clip, Context, Defense, Gaussian, Laplace, Sparsify, identity
from fedleak.defenses.payloads import global_norm, update_of
from fedleak.errors import RefusedError
from fedleak.types import Gradients, Payload, Predictions, Weights


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gradients(*sizes: int, seed: int = 1) -> Gradients:
    draw = rng(seed)
    return Gradients({f"layer{i}": torch.randn(size, generator=draw) for i, size in enumerate(sizes)})


def weights(seed: int = 2, step: float = 0.01) -> tuple[Weights, Context]:
    """Sent weights close to the broadcast, as after a little training."""
    draw = rng(seed)
    first = {"a": torch.randn(30, 4, generator=draw), "b": torch.randn(7, generator=draw)}
    sent = {name: value + step * torch.randn(value.shape, generator=draw) for name, value in first.items()}
    return Weights(sent, {"count": torch.tensor(3)}), Context("message", broadcast=Weights(first))


AT_MESSAGE = Context("message")


def test_gaussian_noise_is_gaussian() -> None:
    zero = Gradients({"w": torch.zeros(20_000)})
    noise = Gaussian(sigma=0.3).apply(zero, AT_MESSAGE, rng()).tensors["w"]
    assert stats.kstest(noise.numpy(), stats.norm(0, 0.3).cdf).pvalue > 0.01
    assert abs(float(noise.mean())) < 4 * 0.3 / math.sqrt(20_000)
    assert float(noise.var()) == pytest.approx(0.09, rel=0.05)


def test_laplace_noise_is_laplace_with_variance_two_scale_squared() -> None:
    zero = Gradients({"w": torch.zeros(20_000)})
    noise = Laplace(scale=0.2).apply(zero, AT_MESSAGE, rng()).tensors["w"]
    assert stats.kstest(noise.numpy(), stats.laplace(0, 0.2).cdf).pvalue > 0.01
    assert float(noise.var()) == pytest.approx(2 * 0.2**2, rel=0.08)
    assert bool(noise.isfinite().all())


@pytest.mark.parametrize("defense", [Gaussian(sigma=0.1), Laplace(scale=0.1)])
def test_noise_is_fresh_at_every_use_and_repeatable_from_its_seed(defense: Defense) -> None:
    sent, one = gradients(50), rng(7)
    first, second = (defense.apply(sent, AT_MESSAGE, one).tensors["layer0"] for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first, defense.apply(sent, AT_MESSAGE, rng(7)).tensors["layer0"])


def test_noise_differs_between_tensors_of_the_same_shape() -> None:
    out = Gaussian(sigma=1.0).apply(Gradients({"a": torch.zeros(9), "b": torch.zeros(9)}), AT_MESSAGE, rng()).tensors
    assert not torch.equal(out["a"], out["b"])


def test_noise_of_strength_zero_changes_nothing() -> None:
    sent = gradients(20)
    for defense in (Gaussian(sigma=0.0), Laplace(scale=0.0)):
        assert torch.equal(defense.apply(sent, AT_MESSAGE, rng()).tensors["layer0"], sent.tensors["layer0"])


@given(norm=st.floats(0.01, 30), step=st.floats(1e-3, 1.0))
def test_the_clipped_update_of_weights_has_at_most_the_norm_and_the_same_direction(norm: float, step: float) -> None:
    sent, context = weights(step=step)
    clipped = Clip(norm=norm).apply(sent, context, rng())
    before, after = update_of(sent, context), update_of(clipped, context)
    assert global_norm(after) == pytest.approx(min(norm, global_norm(before)), rel=1e-3)
    flat = [torch.cat([v.flatten() for v in update.values()]) for update in (before, after)]
    assert float(torch.cosine_similarity(*flat, dim=0)) > 0.999


def test_clipping_by_hand() -> None:
    # |(3, 4)| = 5 over both tensors together; clipped to 1 it is (0.6, 0.8)
    out = Clip(norm=1.0).apply(Gradients({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}), AT_MESSAGE, rng())
    assert out.tensors["a"].item() == pytest.approx(0.6)
    assert out.tensors["b"].item() == pytest.approx(0.8)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_what_broke_down_is_bounded_too(broken: float) -> None:
    """A proof is about every client, also one whose training diverged: it must not show through the noise."""
    sent, context = weights()
    sent.tensors["b"][3] = broken
    assert global_norm(update_of(Clip(norm=1.0).apply(sent, context, rng()), context)) == 0.0
    said = Predictions(torch.tensor([[0.2, 0.8], [broken, 0.5]]), "probabilities", torch.arange(2))
    for defense in (Gaussian(sigma=0.1), Laplace(scale=0.1)):
        out = defense.apply(said, AT_MESSAGE, rng())
        assert isinstance(out, Predictions)
        assert bool(out.values.isfinite().all())


def test_a_short_update_is_sent_bit_for_bit() -> None:
    sent, context = weights()
    assert Clip(norm=100.0).apply(sent, context, rng()) is sent


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    fraction=st.floats(0, 0.99),
    by=st.sampled_from(["magnitude", "signed"]),
)
@settings(deadline=None)
def test_exactly_the_fraction_becomes_zero_and_the_rest_stays(sizes: list[int], fraction: float, by: str) -> None:
    sent = gradients(*sizes)
    out = Sparsify(fraction=fraction, by=by).apply(sent, AT_MESSAGE, rng())  # type: ignore[arg-type]
    before = torch.cat(list(sent.tensors.values()))
    after = torch.cat(list(out.tensors.values()))
    zero = after == 0
    assert int(zero.sum()) == round(fraction * sum(sizes))
    assert torch.equal(after[~zero], before[~zero])
    if zero.any() and not zero.all():
        size = before.abs() if by == "magnitude" else before
        assert float(size[zero].max()) <= float(size[~zero].min())


def test_equal_numbers_are_counted_exactly() -> None:
    out = Sparsify(fraction=0.5).apply(Gradients({"w": torch.ones(10)}), AT_MESSAGE, rng())
    assert int((out.tensors["w"] == 0).sum()) == 5
    # Three of six: the smallest, and of the five equal ones the first two.
    mixed = Sparsify(fraction=0.5).apply(Gradients({"w": torch.tensor([2.0, 2, 1, 2, 2, 2])}), AT_MESSAGE, rng())
    assert mixed.tensors["w"].tolist() == [0.0, 0.0, 0.0, 2.0, 2.0, 2.0]


def test_sparsifying_the_update_leaves_pruned_weights_at_the_broadcast() -> None:
    sent, context = weights()
    out = Sparsify(fraction=0.8).apply(sent, context, rng())
    assert context.broadcast is not None
    same = sum(int((out.tensors[name] == first).sum()) for name, first in context.broadcast.tensors.items())
    assert same == round(0.8 * 127)


def test_pruning_weights_puts_whole_weights_into_the_apparent_update() -> None:
    sent, context = weights()
    out = Sparsify(fraction=0.5, of="weights").apply(sent, context, rng())
    assert sum(int((value == 0).sum()) for value in out.tensors.values()) == round(0.5 * 127)
    assert global_norm(update_of(out, context)) > 10 * global_norm(update_of(sent, context))


def test_the_papers_literal_text_prunes_the_most_negative() -> None:
    sent = Gradients({"w": torch.tensor([-3.0, -1.0, 0.5, 2.0])})
    signed = Sparsify(fraction=0.5, by="signed").apply(sent, AT_MESSAGE, rng())
    assert signed.tensors["w"].tolist() == [0.0, 0.0, 0.5, 2.0]
    assert Sparsify(fraction=0.5).apply(sent, AT_MESSAGE, rng()).tensors["w"].tolist() == [-3.0, 0.0, 0.0, 2.0]


EVERY: list[Defense] = [
    identity,
    Gaussian(sigma=0.1),
    Laplace(scale=0.1),
    Clip(norm=0.01),
    Sparsify(fraction=0.5),
    Sparsify(fraction=0.5, of="weights", by="signed"),
]


@pytest.mark.parametrize("defense", EVERY)
@pytest.mark.parametrize("kind", ["gradients", "weights", "predictions"])
def test_every_defense_keeps_kind_names_shapes_and_its_input(defense: Defense, kind: str) -> None:
    sent, context = weights()
    payload: Payload = sent
    if kind == "gradients":
        payload = Gradients(sent.tensors)
    elif kind == "predictions":
        payload = Predictions(sent.tensors["a"], "logits", torch.arange(30))
    copy = {name: value.clone() for name, value in sent.tensors.items()}
    out = defense.apply(payload, context, rng())
    assert type(out) is type(payload)
    if isinstance(out, Predictions):
        assert out.values.shape == (30, 4)
        assert out.values.dtype == torch.float32
        assert out.scale == "logits"
    else:
        assert {n: (t.shape, t.dtype) for n, t in out.tensors.items()} == {
            n: (t.shape, t.dtype) for n, t in sent.tensors.items()
        }
    if isinstance(out, Weights):
        assert int(out.buffers["count"]) == 3
    for name, value in sent.tensors.items():
        assert torch.equal(value, copy[name])


@pytest.mark.parametrize("defense", [Clip(norm=1e-3), Sparsify(fraction=0.5)])
def test_an_update_without_its_broadcast_is_refused(defense: Defense) -> None:
    sent, _ = weights()
    with pytest.raises(RefusedError, match="broadcast"):
        defense.apply(sent, AT_MESSAGE, rng())


@pytest.mark.parametrize(
    ("kind", "given"),
    [(Gaussian, {"sigma": -1}), (Laplace, {"scale": float("nan")}), (Clip, {"norm": 0}), (Sparsify, {"fraction": 1.0})],
)
def test_senseless_strengths_are_refused_with_the_name_of_the_field(kind: type, given: dict[str, float]) -> None:
    with pytest.raises(pydantic.ValidationError, match=next(iter(given))):
        kind(**given)
