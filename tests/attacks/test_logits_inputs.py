"""Eq. 6 maximises eq. 4, row by row."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedleak.attacks.logits.inputs import optimal_inputs, optimal_server, quality, softened


def test_the_numbers_of_the_papers_setting() -> None:
    row = optimal_server(torch.tensor([7]), 1000, 5.0)[0]
    assert float(row[7]) == pytest.approx(0.001221, abs=5e-7)
    assert float(row[8]) == pytest.approx(0.0009998, abs=5e-8)
    assert float(row[7]) == pytest.approx(math.exp(0.2) / (999 + math.exp(0.2)), rel=1e-6)


@given(
    classes=st.integers(2, 60),
    alpha=st.floats(0.01, 50),
    data=st.data(),
    q=st.sampled_from(["full", "client_server", "client_entropy"]),
)
def test_rows_are_probabilities_and_differ_by_label(classes: int, alpha: float, data: st.DataObject, q: str) -> None:
    labels = torch.tensor(data.draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=5, unique=True)))
    rows = optimal_inputs(q, labels, classes, alpha)
    assert rows.shape == (len(labels), 2 * classes)
    server, client = rows.split(classes, dim=1)
    for part in (server, client):
        assert torch.allclose(part.sum(dim=1), torch.ones(len(labels)), atol=1e-5)
        assert bool((part >= 0).all())
    assert len(torch.unique(rows, dim=0)) == len(labels)
    assert torch.equal(client.argmax(dim=1), labels)


@given(classes=st.integers(2, 30), alpha=st.floats(0.05, 20), seed=st.integers(0, 10_000))
def test_no_random_pair_has_a_larger_q(classes: int, alpha: float, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    label = torch.randint(0, classes, (1,), generator=rng)
    server, client = optimal_inputs("full", label, classes, alpha).double().split(classes, dim=1)
    best = quality(client, server, label, alpha)
    sharp = 10 ** (4 * torch.rand(200, 1, generator=rng, dtype=torch.float64) - 2)
    rivals = [torch.softmax(sharp * torch.randn(200, classes, generator=rng, dtype=torch.float64), 1) for _ in range(2)]
    near = torch.softmax(server.log() + 0.05 * torch.randn(200, classes, generator=rng, dtype=torch.float64), 1)
    labels = label.expand(200)
    assert float(quality(rivals[0], rivals[1], labels, alpha).max()) <= float(best) + 1e-5
    assert float(quality(client.expand(200, -1), near, labels, alpha).max()) <= float(best) + 1e-5


def test_every_ablation_maximises_its_own_terms() -> None:
    """ptbi_supplement.txt, table S-4."""
    labels, classes = torch.tensor([2, 0]), 4
    one_hot = torch.eye(classes)[labels]
    assert torch.equal(optimal_inputs("client", labels, classes, 5.0), one_hot)
    assert torch.equal(optimal_inputs("client_server", labels, classes, 5.0), torch.cat([one_hot, one_hot], 1))
    uniform = torch.full((2, classes), 0.25)
    assert torch.equal(optimal_inputs("client_entropy", labels, classes, 5.0), torch.cat([uniform, one_hot], 1))
    assert torch.equal(optimal_inputs("server", labels, classes, 5.0), optimal_server(labels, classes, 5.0))
    assert torch.equal(optimal_inputs("full", labels, classes, 5.0)[:, :classes], optimal_server(labels, classes, 5.0))


def test_the_released_rows_mark_every_label_of_the_batch() -> None:
    rows = optimal_server(torch.tensor([2, 0]), 4, 5.0, rows="batch")
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0] > rows[0].min(), torch.tensor([True, False, True, False]))


def test_a_small_alpha_does_not_overflow() -> None:
    assert torch.equal(optimal_server(torch.tensor([1]), 3, 1e-4), torch.tensor([[0.0, 1.0, 0.0]]))


def test_softened_is_a_softmax_with_temperature() -> None:
    expected = [math.exp(2 / 3) / (math.exp(2 / 3) + 1), 1 / (math.exp(2 / 3) + 1)]
    assert softened(torch.tensor([2.0, 0.0]), 3.0).tolist() == pytest.approx(expected)
