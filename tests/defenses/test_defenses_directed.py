"""The directed perturbation against a plain loop over candidates, and what it must hold to."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedleak.defenses import Context, Directed
from fedleak.defenses import sensitivity as sensitivity_module
from fedleak.defenses.sensitivity import changes_of_gradient, last_layer_changes
from fedleak.errors import RefusedError
from fedleak.learning.functional import Network
from fedleak.types import Named, Normalisation, Predictions, PublicSet

CLASSES = 4


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def module() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Conv2d(1, 3, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(3 * 4, 6),
            nn.Tanh(),
            nn.Linear(6, 4),
        )


NETWORK = Network(module())
PUBLIC = PublicSet(torch.rand(9, 1, 6, 6, generator=rng(1)))
NORMALISATION = Normalisation((0.4,), (0.5,))
CONTEXT = Context(
    "message", network=NETWORK, previous=NETWORK.initial(), public=PUBLIC, normalisation=NORMALISATION, round=2
)


def prediction(scale: Any = "probabilities", index: list[int] | None = None) -> Predictions:
    at = torch.tensor(index if index is not None else [0, 2, 3, 5, 7])
    values = torch.randn(len(at), CLASSES, generator=rng(5))
    return Predictions(values if scale == "logits" else values.softmax(-1), scale, at)


def gradient(parameters: Named, x: Tensor, target: Tensor) -> Tensor:
    """Equation 4, by plain autograd: the gradient of one example's cross-entropy, as one vector."""
    own = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    loss = -(target * torch.log_softmax(NETWORK(own, x.unsqueeze(0)), dim=-1)).sum()
    return torch.cat([slope.flatten() for slope in torch.autograd.grad(loss, list(own.values()))])


def plain(before: Tensor, after: Tensor, inputs: Tensor, order: float) -> Tensor:
    """Algorithm 2, line 9, one candidate and one example at a time. `after` is (n, candidates, classes)."""
    parameters = NETWORK.initial()
    rows = [
        [
            float(torch.linalg.vector_norm(gradient(parameters, x, q) - gradient(parameters, x, p), ord=order))
            for q in candidates
        ]
        for x, p, candidates in zip(inputs, before, after, strict=True)
    ]
    return torch.tensor(rows)


@pytest.mark.parametrize("order", [1.0, 2.0, math.inf])
def test_all_candidates_at_once_are_the_plain_loop(order: float) -> None:
    inputs = torch.randn(5, 1, 6, 6, generator=rng(2))
    target = torch.randn(5, CLASSES, generator=rng(3)).softmax(-1)
    noise = torch.randn(5, CLASSES, generator=rng(4))
    expected = plain(target, target.unsqueeze(1) + torch.diag_embed(noise), inputs, order)
    found = changes_of_gradient(NETWORK, NETWORK.initial(), inputs, noise, order)
    assert torch.allclose(found, expected, rtol=1e-4)
    whole = changes_of_gradient(NETWORK, NETWORK.initial(), inputs, torch.diag_embed(noise), order)
    assert torch.allclose(whole, expected, rtol=1e-4)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, noise = torch.randn(7, 1, 6, 6, generator=rng(2)), torch.randn(7, CLASSES, generator=rng(4))
    at_once = changes_of_gradient(NETWORK, NETWORK.initial(), inputs, noise, 2.0)
    monkeypatch.setattr(sensitivity_module, "BYTES_AT_ONCE", 3000)
    assert torch.allclose(changes_of_gradient(NETWORK, NETWORK.initial(), inputs, noise, 2.0), at_once, rtol=1e-5)


def test_the_last_bias_in_closed_form_is_its_part_of_the_gradient() -> None:
    inputs = torch.randn(5, 1, 6, 6, generator=rng(2))
    target, noise = torch.full((5, CLASSES), 0.25), torch.randn(5, CLASSES, generator=rng(4))
    found = last_layer_changes(NETWORK, NETWORK.initial(), inputs, noise, 2.0)
    parameters = NETWORK.initial()
    for i in range(5):
        for j in range(CLASSES):
            moved = target[i] + noise[i, j] * torch.eye(CLASSES)[j]
            change = gradient(parameters, inputs[i], moved) - gradient(parameters, inputs[i], target[i])
            assert float(found[i, j]) == pytest.approx(float(change[-CLASSES:].norm()), rel=1e-4)


@pytest.mark.parametrize("scale", ["probabilities", "logits"])
def test_the_sent_class_is_the_one_algorithm_2_chooses(scale: str) -> None:
    sent = prediction(scale)
    out = Directed(gamma=0.04).apply(sent, CONTEXT, rng(8))
    assert isinstance(out, Predictions)
    moved = out.values - sent.values
    touched = (moved != 0).any(dim=0).nonzero().flatten().tolist()
    assert len(touched) == 1, "one class for the whole public set"
    noise = 0.2 * torch.randn(sent.values.shape, generator=rng(8))
    after = sent.values.unsqueeze(1) + torch.diag_embed(noise)
    before = sent.values
    if scale == "logits":
        before, after = before.softmax(-1), after.softmax(-1)
    inputs = NORMALISATION.apply(PUBLIC.inputs[sent.index])
    chosen = int(plain(before, after, inputs, 2.0).sum(dim=0).argmax())
    assert touched == [chosen]
    assert torch.allclose(moved[:, chosen], noise[:, chosen], atol=1e-6)


def test_one_class_for_each_example() -> None:
    sent = prediction()
    out = Directed(gamma=0.04, scope="example").apply(sent, CONTEXT, rng(8))
    moved = out.values - sent.values
    assert ((moved != 0).sum(dim=1) == 1).all()
    noise = 0.2 * torch.randn(sent.values.shape, generator=rng(8))
    inputs = NORMALISATION.apply(PUBLIC.inputs[sent.index])
    scores = plain(sent.values, sent.values.unsqueeze(1) + torch.diag_embed(noise), inputs, 2.0)
    assert torch.equal((moved != 0).float().argmax(dim=1), scores.argmax(dim=1))


def test_it_is_pure_and_draws_from_its_generator() -> None:
    sent = prediction()
    copy = sent.values.clone()
    first, same, other = (Directed(gamma=0.01).apply(sent, CONTEXT, rng(s)).values for s in (1, 1, 2))
    assert torch.equal(sent.values, copy)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(Directed(gamma=0.0).apply(sent, CONTEXT, rng(1)).values, copy)


def test_the_noise_has_variance_gamma() -> None:
    many = PublicSet(torch.rand(4000, 1, 6, 6, generator=rng(1)))
    sent = Predictions(torch.full((4000, CLASSES), 0.25), "probabilities", torch.arange(4000))
    context = Context("message", network=NETWORK, previous=NETWORK.initial(), public=many)
    out = Directed(gamma=0.01, layers="last", sample=50).apply(sent, context, rng(1))
    moved = (out.values - sent.values).sum(dim=1)
    assert float(moved.var()) == pytest.approx(0.01, rel=0.1)
    assert abs(float(moved.mean())) < 4 * 0.1 / math.sqrt(4000)


@pytest.mark.parametrize("b", [1.0, 2.0])
def test_clipping_keeps_what_the_gaussian_does_not(b: float) -> None:
    sent = prediction()
    free = Directed(gamma=0.01).apply(sent, CONTEXT, rng(3)).values - sent.values
    assert float(free.abs().max()) > 0.01
    each = Directed(gamma=0.01, clip="example").apply(sent, CONTEXT, rng(3)).values - sent.values
    assert float(each.abs().max()) == pytest.approx(0.01, rel=1e-3)
    whole = Directed(gamma=0.01, clip="dataset", b=b).apply(sent, CONTEXT, rng(3)).values - sent.values
    assert float(torch.linalg.vector_norm(whole.flatten(), ord=b)) == pytest.approx(0.01, rel=1e-3)


def test_a_sample_decides_for_the_data_set_and_no_example_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[Tensor] = []

    def measured(network: Network, parameters: Named, inputs: Tensor, moves: Tensor, order: float) -> Tensor:
        judged.append(inputs)
        return moves.abs()

    monkeypatch.setattr("fedleak.defenses.directed.changes_of_gradient", measured)
    sent = prediction()
    Directed(gamma=0.01, sample=2).apply(sent, CONTEXT, rng(3))
    each = Directed(gamma=0.01, scope="example", sample=2).apply(sent, CONTEXT, rng(3))
    alone = Directed(gamma=0.01, scope="example").apply(sent, CONTEXT, rng(3))
    assert [len(one) for one in judged] == [2, 5, 5]
    assert torch.equal(each.values, alone.values)


def test_a_sample_decides_alike_where_it_is_everything() -> None:
    sent = prediction()
    full = Directed(gamma=0.01).apply(sent, CONTEXT, rng(3)).values
    assert torch.equal(Directed(gamma=0.01, sample=5).apply(sent, CONTEXT, rng(3)).values, full)


@pytest.mark.parametrize("missing", ["network", "previous", "public"])
def test_a_context_without_an_imitator_is_refused(missing: str) -> None:
    given: dict[str, Any] = {"network": NETWORK, "previous": NETWORK.initial(), "public": PUBLIC, missing: None}
    with pytest.raises(RefusedError, match=missing):
        Directed(gamma=0.01).apply(prediction(), Context("message", **given), rng())
