"""Total variation: by hand, its slope, and its place in the objective."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedleak.attacks.inversion.cosine import Cosine
from fedleak.attacks.inversion.distances import UnitDifference
from fedleak.attacks.inversion.dlm_plus import DLMPlus
from fedleak.attacks.inversion.dummies import Dummies
from fedleak.attacks.inversion.objective import GradientMatch
from fedleak.attacks.inversion.priors import TotalVariation
from fedleak.learning.functional import Network, cross_entropy
from fedleak.types import Normalisation


def test_by_hand() -> None:
    """Across the differences are 2 and -1, down -1 and -4; each mean is over two."""
    picture = torch.tensor([[[[[1.0, 3.0], [0.0, -1.0]]]]])
    value, _ = TotalVariation(10.0, "squared")(picture)
    assert value.tolist() == [pytest.approx(10 * (5 / 2 + 17 / 2))]
    value, slope = TotalVariation(10.0, "absolute")(picture)
    assert value.tolist() == [pytest.approx(10 * (3 / 2 + 5 / 2))]
    assert (slope / 5).flatten().tolist() == [0.0, 2.0, 0.0, -2.0]


@pytest.mark.parametrize("norm", ["squared", "absolute"])
def test_slopes_agree_with_automatic_differentiation(norm: str) -> None:
    pictures = torch.randn(3, 2, 3, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pictures.requires_grad_()
    across, down = pictures.diff(dim=-1), pictures.diff(dim=-2)
    size = torch.square if norm == "squared" else torch.abs
    expected = 0.3 * (size(across).flatten(1).mean(dim=1) + size(down).flatten(1).mean(dim=1))
    (right,) = torch.autograd.grad(expected.sum(), pictures)
    value, slope = TotalVariation(0.3, norm)(pictures.detach())
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(slope, right)


def test_pictures_one_pixel_wide_vary_in_one_direction_only() -> None:
    value, slope = TotalVariation(1.0)(torch.tensor([[[[[1.0], [3.0]]]]]))
    assert value.tolist() == [4.0]
    assert slope.flatten().tolist() == [-4.0, 4.0]


def test_the_prior_is_a_part_of_the_objective_and_touches_pixels_only() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    network, dummies = Network(module), Dummies(2, (1, 4, 4), 3)
    rng = torch.Generator().manual_seed(1)
    points = torch.randn(3, dummies.size, generator=rng, dtype=torch.float64)
    targets = [torch.randn(3, *w.shape, generator=rng, dtype=torch.float64) for w in network.initial().values()]
    prior, common = TotalVariation(0.5), (network, network.initial(), {}, cross_entropy, dummies, UnitDifference())
    plain, plain_slope = GradientMatch(*common)(points, targets)
    with_prior, slope = GradientMatch(*common, prior=prior)(points, targets)
    more, pull = prior(dummies.inputs(points))
    torch.testing.assert_close(with_prior, plain + more)
    torch.testing.assert_close(slope - plain_slope, torch.cat([pull.flatten(1), torch.zeros(3, 6).double()], dim=1))


@pytest.mark.parametrize("cls", [DLMPlus, Cosine])
def test_the_weight_stands_beside_the_objective_without_its_factor(cls: type) -> None:
    """Eq. 14: beta TV beside eq. 8; both are multiplied by the factor."""
    attack = cls(tv=0.01, factor=500.0)
    recipe = attack.make_recipe(UnitDifference(attack.factor), attack.factor)
    assert recipe.prior == TotalVariation(5.0, "squared")
    assert cls().make_recipe(UnitDifference()).prior is None


def test_more_total_variation_makes_smoother_pictures(scene: Callable) -> None:
    seen = scene((2,)).transcript

    def roughness(tv: float) -> float:
        (victim,) = DLMPlus(tv=tv, steps=8, restarts=0)(seen, rng=torch.Generator().manual_seed(0)).victims
        return float(TotalVariation(1.0)(victim.inputs[None])[0])

    assert roughness(1.0) < 0.1 * roughness(0.0)


def test_the_box_is_the_range_of_pixels_and_nothing_else_is_bound() -> None:
    dummies = Dummies(1, (2, 1, 1), 2, start=(120.0,))
    low, high = dummies.box(Normalisation((0.5, 0.25), (0.5, 0.25)), torch.zeros(1))
    inf = float("inf")
    assert low.tolist() == [-1.0, -1.0, -inf, -inf, -inf]
    assert high.tolist() == [1.0, 3.0, inf, inf, inf]


def test_clamped_pictures_stay_in_range(scene: Callable) -> None:
    made = scene((1,), normalisation=Normalisation((0.4,), (0.25,)))
    attack = Cosine(preset="geiping", steps=40, labels="idlg", tv=0.0)
    (victim,) = attack(made.transcript, rng=torch.Generator().manual_seed(0)).victims
    assert victim.inputs.min() >= -1e-6
    assert victim.inputs.max() <= 1 + 1e-6
