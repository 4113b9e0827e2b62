"""The batched Adam is torch.optim.Adam, problem by problem."""

from __future__ import annotations

import torch
from torch import Tensor

from fedleak.attacks.inversion.adam import Adam


def wavy(x: Tensor) -> Tensor:
    return (torch.sin(3 * x) + 0.1 * x**2).sum(dim=-1)


def evaluate(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    points = points.detach().requires_grad_()
    values = wavy(points)
    (slopes,) = torch.autograd.grad(values.sum(), points)
    return values.detach(), slopes


def test_every_row_takes_torchs_iterates() -> None:
    points = torch.randn(3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theirs = points.clone().requires_grad_()
    rival, ours = torch.optim.Adam([theirs], lr=0.1), Adam(lr=0.1)
    state = ours.begin(points)
    for _ in range(30):
        points = ours.advance(points, state, evaluate).points
        rival.zero_grad()
        wavy(theirs).sum().backward()
        rival.step()
        torch.testing.assert_close(points, theirs.detach(), rtol=1e-10, atol=1e-12)


def test_a_forgotten_row_begins_anew_with_its_own_bias_correction() -> None:
    start = torch.randn(2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours = Adam(lr=0.1)
    state = ours.begin(start)
    once = ours.advance(start, state, evaluate).points
    state.forget(torch.tensor([0]))
    again = ours.advance(torch.stack([start[0], once[1]]), state, evaluate).points
    assert torch.equal(again[0], once[0])
    assert not torch.equal(again[1], once[1])


def test_a_row_that_meets_nan_stands_still_and_the_others_go_on() -> None:
    def broken(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        values, slopes = evaluate(points, rows)
        slopes[0, 0] = float("nan")
        return values, slopes

    start = torch.ones(2, 6, dtype=torch.float64)
    ours = Adam(lr=0.1)
    outcome = ours.advance(start, ours.begin(start), broken)
    assert outcome.broken.tolist() == [True, False]
    assert torch.equal(outcome.points[0], start[0])
    assert torch.equal(outcome.points[1], ours.advance(start, ours.begin(start), evaluate).points[1])


def test_with_signs_only_the_direction_of_every_slope_counts() -> None:
    def scaled(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        values, slopes = evaluate(points, rows)
        return values, 1000 * slopes

    start = torch.randn(2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours = Adam(lr=0.1, signed=True)
    once = ours.advance(start, ours.begin(start), evaluate).points
    assert torch.equal(once, ours.advance(start, ours.begin(start), scaled).points)
    torch.testing.assert_close((once - start).abs(), torch.full_like(start, 0.1))


def test_after_a_milestone_steps_are_a_tenth_for_each_row_in_its_own_time() -> None:
    """torch's MultiStepLR: `milestones` full steps, then smaller ones; a row that begins anew is before them again."""
    point = torch.ones(1, 6, dtype=torch.float64)
    theirs = point.clone().requires_grad_()
    rival = torch.optim.Adam([theirs], lr=0.1)
    schedule = torch.optim.lr_scheduler.MultiStepLR(rival, milestones=[2, 4], gamma=0.1)
    ours = Adam(lr=0.1, milestones=(2, 4))
    state = ours.begin(point)
    for _ in range(6):
        point = ours.advance(point, state, evaluate).points
        rival.zero_grad()
        wavy(theirs).sum().backward()
        rival.step()
        schedule.step()
        torch.testing.assert_close(point, theirs.detach(), rtol=1e-10, atol=1e-12)
    state.forget(torch.tensor([0]))
    again = ours.advance(torch.ones(1, 6, dtype=torch.float64), state, evaluate).points
    torch.testing.assert_close((again - 1).abs(), torch.full_like(again, 0.1))
