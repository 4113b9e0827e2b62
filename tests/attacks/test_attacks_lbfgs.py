"""The batched L-BFGS is torch.optim.LBFGS, problem by problem."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fedleak.attacks.inversion.distances import UnitDifference
from fedleak.attacks.inversion.dummies import Dummies
from fedleak.attacks.inversion.lbfgs import LBFGS
from fedleak.attacks.inversion.objective import GradientMatch
from fedleak.learning.functional import Network, cross_entropy
from fedleak.learning.updates import apparent_gradient
from fedleak.models import build_model

SIZE = 10
MATRIX = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
CURVED = MATRIX @ MATRIX.T + torch.eye(SIZE, dtype=torch.float64)


def quadratic(x: Tensor) -> Tensor:
    return 0.5 * ((x @ CURVED) * x).sum(dim=-1) - x.sum(dim=-1)


def rosenbrock(x: Tensor) -> Tensor:
    return (100 * (x[..., 1:] - x[..., :-1] ** 2) ** 2 + (1 - x[..., :-1]) ** 2).sum(dim=-1)


def wavy(x: Tensor) -> Tensor:
    """Has negative curvature in places, so that pairs are skipped."""
    return (torch.sin(3 * x) + 0.1 * x**2).sum(dim=-1)


def evaluated(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    def evaluate(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        points = points.detach().requires_grad_()
        values = function(points)
        (slopes,) = torch.autograd.grad(values.sum(), points)
        return values.detach(), slopes

    return evaluate


def torch_iterates(function: Callable[[Tensor], Tensor], start: Tensor, steps: int, ours: LBFGS) -> list[Tensor]:
    point = start.clone().requires_grad_()
    rival = torch.optim.LBFGS(
        [point],
        lr=ours.lr,
        max_iter=ours.inner,
        history_size=ours.history,
        tolerance_grad=ours.tolerance_grad,
        tolerance_change=ours.tolerance_change,
    )

    def closure() -> Tensor:
        rival.zero_grad()
        value = function(point)
        value.backward()
        return value

    seen = []
    for _ in range(steps):
        rival.step(closure)
        seen.append(point.detach().clone())
    return seen


@pytest.mark.parametrize("function", [quadratic, rosenbrock, wavy])
@pytest.mark.parametrize(("history", "inner"), [(100, 20), (3, 1), (3, 7)])
@pytest.mark.parametrize("tolerances", [(0.0, 0.0), (1e-7, 1e-9), (1e-2, 1e-3)])
@pytest.mark.parametrize("waits", [True, False])
def test_every_row_takes_torchs_iterates(
    function: Callable[[Tensor], Tensor], history: int, inner: int, tolerances: tuple[float, float], waits: bool
) -> None:
    # Without a line search Rosenbrock explodes at lr 1, in torch too.
    ours = LBFGS(1e-3 if function is rosenbrock else 0.3, history, inner, *tolerances, waits=waits)
    points = 0.5 * torch.randn(4, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rivals = [torch_iterates(function, start, 6, ours) for start in points]
    state = ours.begin(points)
    for step in range(6):
        points = ours.advance(points, state, evaluated(function)).points
        theirs = torch.stack([iterates[step] for iterates in rivals])
        torch.testing.assert_close(points, theirs, rtol=1e-7, atol=1e-9)


def test_one_inversion_takes_torchs_iterates(scene: Callable) -> None:
    """A real objective: DLM+ on a small LeNet, in double precision so that rounding does not decide the path."""
    seen = scene((1,), dtype=torch.float64, shape=(1, 6, 6)).transcript
    (round_,) = seen.rounds
    distance = UnitDifference(factor=1000.0)
    module = build_model(seen.setup.model, seen.setup.input_shape, seen.setup.classes).double()
    dummies = Dummies(1, seen.setup.input_shape, seen.setup.classes)
    objective = GradientMatch(Network(module), round_.broadcast.tensors, {}, cross_entropy, dummies, distance)
    update = [value[None] for value in apparent_gradient(round_, round_.received[0]).values()]
    target = distance.prepare(update)
    start = 0.3 * torch.randn(1, dummies.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    truth = torch.cat([value.flatten() for value in update])

    def plainly(point: Tensor) -> Tensor:
        """Eq. 8 as it is printed, through ordinary double backward."""
        weights = {name: value.clone().requires_grad_() for name, value in round_.broadcast.tensors.items()}
        inputs, labels = dummies.inputs(point[None])[0], dummies.logits(point[None])[0].softmax(dim=-1)
        loss = cross_entropy(Network(module)(weights, inputs), labels)
        mine = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(weights.values()), create_graph=True)])
        return 1000 * (mine / mine.norm() - truth / truth.norm()).square().sum()

    ours = LBFGS(tolerance_grad=0, tolerance_change=0, inner=10)
    points, state = start.clone(), ours.begin(start)
    theirs = torch_iterates(plainly, start[0], 4, ours)
    for step in range(4):
        points = ours.advance(points, state, lambda p, rows: objective(p, target)).points
        torch.testing.assert_close(points[0], theirs[step], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("waits", [True, False])
def test_a_row_does_not_notice_its_neighbours(waits: bool) -> None:
    ours = LBFGS(0.3, 4, 6, 0.0, 0.0, waits=waits)
    points = torch.randn(5, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    state, alone, own = ours.begin(points), points[2:3], ours.begin(points[2:3])
    for step in range(8):
        points = ours.advance(points, state, evaluated(wavy)).points
        alone = ours.advance(alone, own, evaluated(wavy)).points
        where = 2 if step < 3 else 1
        if step == 2:  # drop rows on both sides: the state of row 2 moves along
            points, state = points[[1, 2]], state.take(torch.tensor([1, 2]))
            where = 1
        torch.testing.assert_close(points[where], alone[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("waits", [True, False])
def test_a_forgotten_row_begins_anew_and_the_others_go_on(waits: bool) -> None:
    ours = LBFGS(0.3, 4, 6, 0.0, 0.0, waits=waits)
    start = torch.randn(2, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    state, undisturbed = ours.begin(start), ours.begin(start)
    once = ours.advance(start, state, evaluated(wavy)).points
    state.forget(torch.tensor([0]))
    once[0] = start[0]
    again = ours.advance(once, state, evaluated(wavy)).points
    first = ours.advance(start, undisturbed, evaluated(wavy)).points
    second = ours.advance(first, undisturbed, evaluated(wavy)).points
    torch.testing.assert_close(again[0], first[0], rtol=0, atol=0)
    torch.testing.assert_close(again[1], second[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("waits", [True, False])
def test_a_row_that_meets_nan_stands_still_and_says_so(waits: bool) -> None:
    def evaluate(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        values, slopes = evaluated(quadratic)(points, rows)
        return torch.where(rows == 1, float("nan"), values), slopes

    ours = LBFGS(1.0, 10, 5, 0.0, 0.0, waits=waits)
    start = torch.ones(3, SIZE, dtype=torch.float64)
    outcome = ours.advance(start, ours.begin(start), evaluate)
    assert outcome.broken.tolist() == [False, True, False]
    assert outcome.evaluations.tolist() == [5, 1, 5]
    assert torch.equal(outcome.points[1], start[1])
    clean = ours.advance(start, ours.begin(start), evaluated(quadratic))
    assert torch.equal(outcome.points[0], clean.points[0])
    assert not torch.equal(outcome.points[0], start[0])


def test_a_flat_start_is_finished_at_once() -> None:
    ours = LBFGS()
    start = torch.zeros(1, SIZE, dtype=torch.float64)
    outcome = ours.advance(start, ours.begin(start), lambda p, rows: (p.sum(dim=1), torch.zeros_like(p)))
    assert outcome.finished.tolist() == [True]
    assert torch.equal(outcome.points, start)


def test_max_step_bounds_the_root_mean_square_of_every_step() -> None:
    seen: list[Tensor] = []

    def evaluate(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(points.clone())
        return evaluated(rosenbrock)(points, rows)

    ours = LBFGS(1.0, 10, 30, 0.0, 0.0, max_step=0.01)
    start = torch.full((1, SIZE), 0.3, dtype=torch.float64)
    ours.advance(start, ours.begin(start), evaluate)
    steps = torch.stack([(b - a).square().mean().sqrt() for a, b in pairwise(seen)])
    assert steps.max() <= 0.01 * (1 + 1e-9)
    assert (steps > 0.0099).any()


@pytest.mark.parametrize("factor", [1.0, 1000.0])
def test_where_the_curvature_is_negative_the_step_grows_with_the_objective(factor: float) -> None:
    """By hand, on -factor x^2 / 2 from x = 3: the first step is min(1, 1 / |slope|) times the slope, a step of 1 for
    both factors. Its pair has negative curvature and is not remembered, so the next step is the slope itself, factor
    times x: to 4 + 4 for a factor of 1, a thousand times as far for 1000. torch does the same."""

    def hill(x: Tensor) -> Tensor:
        return -factor * (x**2).sum(dim=-1) / 2

    ours = LBFGS(inner=1, tolerance_grad=0.0, tolerance_change=0.0)
    points = torch.tensor([[3.0]], dtype=torch.float64)
    theirs = torch_iterates(hill, points[0], 2, ours)
    state = ours.begin(points)
    for by_hand, rival in zip((4.0, 4.0 + factor * 4.0), theirs, strict=True):
        points = ours.advance(points, state, evaluated(hill)).points
        assert points.item() == pytest.approx(by_hand)
        assert rival.item() == pytest.approx(by_hand)


def test_on_a_small_objective_torchs_floor_of_curvature_stops_the_learning() -> None:
    """By hand, on 1e-6 x^2 / 2 from x = 1: the first step is the slope, 1e-6, and its pair has a curvature of 1e-18. A
    floor of 1e-10 forgets it, and the search creeps on; remembered, it gives the Newton step, and x is 0."""

    def shallow(x: Tensor) -> Tensor:
        return 1e-6 * (x**2).sum(dim=-1) / 2

    ends = []
    for floor in (1e-10, 0.0):
        ours = LBFGS(inner=2, tolerance_grad=0.0, tolerance_change=0.0, tolerance_curvature=floor)
        start = torch.tensor([[1.0]], dtype=torch.float64)
        ends.append(ours.advance(start, ours.begin(start), evaluated(shallow)).points.item())
    assert ends == [pytest.approx((1 - 1e-6) ** 2, rel=1e-12), pytest.approx(0.0, abs=1e-9)]
