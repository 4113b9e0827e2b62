"""Distances: the identities they obey, and closed-form slopes against automatic differentiation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedleak.attacks.inversion.distances import Distance, SquaredL2, UnitDifference

SHAPES = ((3, 2), (4,), (2, 1, 2))


def vectors(seed: int, problems: int = 3, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(problems, *shape, generator=rng, dtype=dtype) for shape in SHAPES]


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.flatten(1) for t in tensors], dim=1)


@given(st.integers(0, 2**32))
def test_dlm_plus_over_all_parameters_is_twice_one_minus_cosine(seed: int) -> None:
    gradient, target = vectors(seed), vectors(seed + 1)
    distance = UnitDifference()
    value, _ = distance(gradient, distance.prepare(target))
    cosine = torch.cosine_similarity(flat(gradient), flat(target), dim=1)
    torch.testing.assert_close(value, 2 * (1 - cosine), rtol=1e-10, atol=1e-12)


@given(st.integers(0, 2**32))
def test_dlm_plus_per_layer_is_the_mean_over_tensors(seed: int) -> None:
    gradient, target = vectors(seed), vectors(seed + 1)
    distance = UnitDifference(per_layer=True)
    value, _ = distance(gradient, distance.prepare(target))
    cosines = [
        torch.cosine_similarity(g.flatten(1), t.flatten(1), dim=1) for g, t in zip(gradient, target, strict=True)
    ]
    torch.testing.assert_close(value, torch.stack([2 * (1 - c) for c in cosines]).mean(dim=0))


@given(st.integers(0, 2**32), st.floats(1e-3, 1e3))
def test_the_scale_of_the_update_drops_out_of_dlm_plus(seed: int, scale: float) -> None:
    gradient, target = vectors(seed), vectors(seed + 1)
    distance = UnitDifference()
    once, _ = distance(gradient, distance.prepare(target))
    scaled, _ = distance(gradient, distance.prepare([scale * t for t in target]))
    torch.testing.assert_close(once, scaled)


def test_squared_l2_by_hand() -> None:
    distance = SquaredL2(factor=10.0)
    target = distance.prepare([torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]])])
    value, slopes = distance([torch.tensor([[2.0, 2.0]]), torch.tensor([[1.0]])], target)
    assert value.tolist() == [50.0]  # 10 * (1 + 0 + 4)
    assert [s.tolist() for s in slopes] == [[[20.0, 0.0]], [[-40.0]]]
    assert distance.unit(target).tolist() == [140.0]  # 10 * (1 + 4 + 9)


@pytest.mark.parametrize("distance", [SquaredL2(3.0), UnitDifference(3.0), UnitDifference(3.0, per_layer=True)])
def test_slopes_agree_with_automatic_differentiation(distance: Distance) -> None:
    gradient = [g.requires_grad_() for g in vectors(5)]
    target = vectors(6)
    mine, theirs = flat(gradient), flat(target)
    if isinstance(distance, SquaredL2):
        value = 3 * (mine - theirs).square().sum(dim=1)
    elif not distance.per_layer:
        value = 3 * (mine / mine.norm(dim=1, keepdim=True) - theirs / theirs.norm(dim=1, keepdim=True)).square().sum(1)
    else:
        pairs = [(g.flatten(1), t.flatten(1)) for g, t in zip(gradient, target, strict=True)]
        value = sum((g / g.norm(dim=1)[:, None] - t / t.norm(dim=1)[:, None]).square().sum(dim=1) for g, t in pairs)
    expected = torch.autograd.grad(value.sum(), gradient)
    found, slopes = distance([g.detach() for g in gradient], distance.prepare(target))
    torch.testing.assert_close(found, value.detach())
    for slope, right in zip(slopes, expected, strict=True):
        torch.testing.assert_close(slope, right)


def test_a_difference_of_unit_vectors_goes_below_the_floor_of_one_minus_cosine() -> None:
    """In float32 1 - cosine of nearly equal vectors is 0 or about 1e-7; the difference still sees 1e-9."""
    target = vectors(1, dtype=torch.float32)
    off = [t + 2e-5 * torch.randn(t.shape, generator=torch.Generator().manual_seed(2)) for t in target]
    distance = UnitDifference()
    value, _ = distance(off, distance.prepare(target))
    exact, _ = distance([o.double() for o in off], distance.prepare([t.double() for t in target]))
    assert exact.max() < 1e-8
    torch.testing.assert_close(value.double(), exact, rtol=0.05, atol=0)
    naive = 2 * (1 - torch.cosine_similarity(flat(off), flat(target), dim=1)).double()
    assert ((naive - exact).abs() > 0.5 * exact).all()


def test_a_gradient_without_direction_gives_finite_numbers() -> None:
    distance = UnitDifference()
    value, slopes = distance([torch.zeros(1, 3)], distance.prepare([torch.ones(1, 3)]))
    assert value.isfinite().all()
    assert all(s.isfinite().all() for s in slopes)
