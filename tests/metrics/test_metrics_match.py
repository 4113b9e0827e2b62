"""Matching: the best over all permutations, with missing and surplus reconstructions."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedleak.errors import RefusedError, ShapeError
from fedleak.metrics import match, psnr, ssim
from fedleak.metrics.match import COSTS, assign


def images(seed: int, n: int, *shape: int) -> torch.Tensor:
    return torch.rand(n, *(shape or (1, 6, 6)), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("by", sorted(COSTS))
def test_undoes_a_shuffle(by: str) -> None:
    originals = images(1, 7)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(2))
    found = originals[order] + 0.01 * images(3, 7)
    matching = match(found, originals, by=by)
    assert torch.equal(order[matching.partner], torch.arange(7))
    assert (psnr(matching.arrange(found), originals) > 35).all()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 5), blend=st.floats(0.0, 1.0))
def test_no_permutation_has_a_higher_total_psnr(seed: int, n: int, blend: float) -> None:
    originals = images(seed, n, 1, 2, 3)
    found = blend * originals.flip(0) + (1 - blend) * images(seed + 1, n, 1, 2, 3)
    ours = psnr(match(found, originals).arrange(found), originals).sum()
    best = max(psnr(found[list(order)], originals).sum() for order in permutations(range(n)))
    assert ours.item() == pytest.approx(best.item(), abs=1e-9)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31))
def test_no_permutation_has_a_higher_total_ssim(seed: int) -> None:
    originals, found = images(seed, 4), images(seed + 1, 4)
    ours = ssim(match(found, originals, by="ssim").arrange(found), originals).sum()
    best = max(ssim(found[list(order)], originals).sum() for order in permutations(range(4)))
    assert ours.item() == pytest.approx(best.item(), abs=1e-4)


def test_greedy_would_be_wrong_here() -> None:
    """One reconstruction is the nearest of both originals; only one may have it."""
    cost = torch.tensor([[0.0, 1.0], [5.0, 100.0]])
    assert assign(cost).partner.tolist() == [1, 0]


def test_psnr_prefers_one_good_match_where_mse_prefers_two_middling_ones() -> None:
    originals = torch.tensor([0.0, 0.5]).reshape(2, 1, 1, 1)
    found = torch.tensor([0.501, 0.6]).reshape(2, 1, 1, 1)
    assert match(found, originals, by="psnr").partner.tolist() == [1, 0]
    assert match(found, originals, by="mse").partner.tolist() == [0, 1]


@pytest.mark.parametrize("n_found", [0, 1, 3])
def test_too_few_reconstructions_leave_originals_unmatched(n_found: int) -> None:
    originals = images(4, 5)
    found = originals[[3, 0, 2]][:n_found]
    matching = match(found, originals)
    arranged = matching.arrange(found)
    expected = {3: 0, 0: 1, 2: 2}
    assert matching.partner.tolist() == [expected[i] if expected.get(i, 9) < n_found else -1 for i in range(5)]
    assert arranged.shape == originals.shape
    scores = psnr(arranged, originals)
    assert (scores[matching.matched] > 100).all()
    assert (scores[~matching.matched] == 0.0).all()
    assert torch.isnan(arranged[~matching.matched]).all()


def test_surplus_reconstructions_are_ignored() -> None:
    originals = images(5, 2)
    found = torch.cat([images(6, 3), originals.flip(0), images(7, 2)])
    assert match(found, originals).partner.tolist() == [4, 3]


def test_a_non_finite_reconstruction_does_not_stop_the_matching() -> None:
    originals = images(8, 3)
    found = originals[[2, 0, 1]].clone()
    found[0] = torch.nan
    assert match(found, originals).partner.tolist() == [1, 2, 0]


def test_arranging_does_not_touch_what_was_found() -> None:
    originals = images(9, 3)
    found = originals[:2].clone()
    before = found.clone()
    match(found, originals).arrange(found)
    assert torch.equal(found, before)


def test_errors() -> None:
    with pytest.raises(RefusedError, match=r"psnr, mse, ssim"):
        match(images(1, 2), images(1, 2), by="taste")
    with pytest.raises(ShapeError):
        match(images(1, 2, 1, 4, 4), images(1, 2, 3, 4, 4))
    with pytest.raises(ShapeError):
        assign(torch.zeros(3))
