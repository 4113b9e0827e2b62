"""DLM: eq. 3 and its identities with eq. 10 (eq. 11), the best gamma in closed form, and the degenerate minimum."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from fedleak.attacks.inversion.distances import JointDistance, SquaredL2, UnitDifference
from fedleak.attacks.inversion.dlg import DLG
from fedleak.attacks.inversion.dlm import DLM
from fedleak.attacks.inversion.dummies import Dummies
from fedleak.attacks.inversion.objective import GradientMatch
from fedleak.attacks.inversion.scaled import BestScale, FreeScale
from fedleak.learning.functional import Network, cross_entropy
from fedleak.learning.updates import apparent_gradient
from fedleak.models import build_model

SHAPES = ((3, 2), (4,), (2, 1, 2))


def vectors(seed: int, problems: int = 3) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(problems, *shape, generator=rng, dtype=torch.float64) for shape in SHAPES]


@given(st.integers(0, 2**32), st.floats(1e-3, 1.0), st.floats(1.0, 300.0))
def test_dlm_is_dlg_with_a_scaled_target(seed: int, lr: float, gamma: float) -> None:
    """Eq. 11: with D = lr * gradient, L_DLM(x, y, gamma) = L'_DLG(x, y, k = gamma * lr)."""
    mine, gradient = vectors(seed), vectors(seed + 1)
    update = [lr * g for g in gradient]
    value, slopes, _ = FreeScale().joint(mine, update, torch.full((3, 1), gamma, dtype=torch.float64))
    expected, right = SquaredL2()(mine, [gamma * lr * g for g in gradient])
    torch.testing.assert_close(value, expected)
    for slope, other in zip(slopes, right, strict=True):
        torch.testing.assert_close(slope, other)


def test_eq_11_holds_for_a_network_and_its_slopes(scene: Callable) -> None:
    """The same on the whole objective: weights sent after one step, against the gradient behind that step."""
    lr, gamma = 0.1, 13.0
    seen = {s: scene((1,), sends=s, lr=lr, dtype=torch.float64).transcript for s in ("weights", "gradients")}
    setup, broadcast = seen["weights"].setup, seen["weights"].rounds[0].broadcast
    network = Network(build_model(setup.model, setup.input_shape, setup.classes).double())
    update, gradient = (
        [v[None] for v in apparent_gradient(s.rounds[0], s.rounds[0].received[0]).values()] for s in seen.values()
    )
    joint = Dummies(1, setup.input_shape, setup.classes, start=(gamma,))
    plain = Dummies(1, setup.input_shape, setup.classes)
    points = joint.draw(torch.Generator().manual_seed(0)).double()
    common = (network, broadcast.tensors, {}, cross_entropy)
    value, slope = GradientMatch(*common, joint, FreeScale(gamma))(points, update)
    expected, right = GradientMatch(*common, plain, SquaredL2())(points[:, :-1], [gamma * lr * g for g in gradient])
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(slope[:, :-1], right)


@pytest.mark.parametrize("gauge", [1.0, 120.0])
def test_slopes_agree_with_automatic_differentiation(gauge: float) -> None:
    mine, update = [g.requires_grad_() for g in vectors(5)], vectors(6)
    unknown = torch.tensor([[0.5], [2.0], [-1.0]], dtype=torch.float64, requires_grad=True)
    parts = [
        (g - (gauge * unknown[:, 0]).reshape(-1, *[1] * (g.dim() - 1)) * t).flatten(1).square().sum(dim=1)
        for g, t in zip(mine, update, strict=True)
    ]
    value = torch.stack(parts).sum(dim=0)
    expected = torch.autograd.grad(value.sum(), [*mine, unknown])
    found, slopes, own = FreeScale(120.0, gauge).joint([g.detach() for g in mine], update, unknown.detach())
    torch.testing.assert_close(found, value.detach())
    for slope, right in zip((*slopes, own), expected, strict=True):
        torch.testing.assert_close(slope, right)


@given(st.integers(0, 2**32), st.floats(-2.0, 2.0).filter(lambda off: abs(off) > 1e-3))
def test_the_closed_form_gamma_minimises_eq_3(seed: int, off: float) -> None:
    mine, update = vectors(seed), vectors(seed + 1)
    rule = BestScale()
    best, value = rule.best(mine, update), rule(mine, update)[0]
    at_best, _, slope = FreeScale().joint(mine, update, best[:, None])
    torch.testing.assert_close(value, at_best)
    torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-10)
    elsewhere, _, _ = FreeScale().joint(mine, update, best[:, None] + off)
    assert (elsewhere > value).all()


def test_the_slope_at_the_best_gamma_is_that_of_the_closed_form() -> None:
    mine, update = [g.requires_grad_() for g in vectors(1)], vectors(2)
    flat, other = (torch.cat([t.flatten(1) for t in tensors], dim=1) for tensors in (mine, update))
    gamma = (flat * other).sum(dim=1) / other.square().sum(dim=1)
    value = (flat - gamma[:, None] * other).square().sum(dim=1)
    expected = torch.autograd.grad(value.sum(), mine)
    found, slopes = BestScale()([g.detach() for g in mine], update)
    torch.testing.assert_close(found, value.detach())
    for slope, right in zip(slopes, expected, strict=True):
        torch.testing.assert_close(slope, right)


def test_dlm_has_a_degenerate_minimum_and_dlm_plus_has_not() -> None:
    """As the dummies' gradient shrinks, whatever its direction, so does eq. 3 at the best gamma; eq. 8 does not."""
    update, wrong = vectors(1), vectors(2)
    values = [float(BestScale()([s * g for g in wrong], update)[0].max()) for s in (1.0, 1e-2, 1e-4)]
    assert values[1] == pytest.approx(1e-4 * values[0])
    assert values[2] == pytest.approx(1e-8 * values[0])
    plus = UnitDifference()
    apart = [float(plus([s * g for g in wrong], plus.prepare(update))[0].min()) for s in (1.0, 1e-4)]
    assert apart[0] == pytest.approx(apart[1])
    assert apart[0] > 0.1


def test_gamma_is_one_more_unknown_at_the_end() -> None:
    distance = FreeScale(gamma=120.0, gauge=60.0)
    assert isinstance(distance, JointDistance)
    assert not isinstance(BestScale(), JointDistance)
    dummies = Dummies(1, (1, 2, 2), 3, start=distance.start)
    start = dummies.draw(torch.Generator().manual_seed(0))
    assert dummies.size == 4 + 3 + 1
    assert dummies.unknowns(start).tolist() == [[2.0]]
    assert dummies.logits(start).shape == (1, 1, 3)
    same = Dummies(1, (1, 2, 2), 3).draw(torch.Generator().manual_seed(0))
    assert torch.equal(start[:, :-1], same)


def test_a_scaled_dlg_finds_the_picture_whose_gradient_is_the_scaled_one(scene: Callable) -> None:
    """Table 2: k changes what is sought, and for k = 1 it is DLG."""
    seen = scene((1,)).transcript
    rng = torch.Generator
    once, same, other = (DLG(scale=k, steps=3)(seen, rng=rng().manual_seed(0)).victims[0] for k in (1.0, 1.0, 0.9))
    assert torch.equal(once.inputs, same.inputs)
    assert not torch.equal(once.inputs, other.inputs)
    plain = DLG(steps=3)(seen, rng=rng().manual_seed(0)).victims[0]
    assert torch.equal(once.inputs, plain.inputs)


@pytest.mark.parametrize(("k", "rule", "solved"), [(0.9, "joint", True), (1.1, "joint", False), (1.1, "raw", True)])
def test_a_target_that_is_scaled_up_has_no_solution_under_a_softmax(
    k: float, rule: str, solved: bool, scene: Callable
) -> None:
    """At the true image: the label (1 - k) p + k y makes k times the gradient, and a softmax is never negative."""
    made = scene((1,), dtype=torch.float64)
    setup, (round_,) = made.transcript.setup, made.transcript.rounds
    network = Network(build_model(setup.model, setup.input_shape, setup.classes).double())
    dummies = Dummies(1, setup.input_shape, setup.classes, raw=rule == "raw")
    objective = GradientMatch(network, round_.broadcast.tensors, {}, cross_entropy, dummies, SquaredL2())
    truth = F.one_hot(made.labels[0], setup.classes).double()
    likely = network(round_.broadcast.tensors, made.images[0]).softmax(dim=-1)
    wanted = k * truth if rule == "raw" else ((1 - k) * likely + k * truth).clamp(min=1e-12).log()
    point = torch.cat([made.images[0].flatten(), wanted.flatten()])[None]
    update = [k * v[None] for v in apparent_gradient(round_, round_.received[0]).values()]
    value, _ = objective(point, update)
    share = float(value / SquaredL2().unit(update))
    assert share < 1e-12 if solved else share > 1e-4


def test_dlm_reads_weights_without_a_learning_rate(scene: Callable, psnr: Callable) -> None:
    made = scene((1, 1), sends="weights", lr=0.01, dtype=torch.float64)
    found = DLM(steps=60)(made.transcript, rng=torch.Generator().manual_seed(0))
    assert all(psnr(v.inputs, images) > 30 for v, images in zip(found.victims, made.images, strict=True))


def test_dlm_with_gamma_in_closed_form_runs_and_says_how_far_it_came(scene: Callable) -> None:
    made = scene((1,), sends="weights", lr=0.01)
    (victim,) = DLM(gamma_rule="closed_form", steps=5)(made.transcript, rng=torch.Generator().manual_seed(0)).victims
    assert victim.status == "ok"
    assert victim.objective >= 0
