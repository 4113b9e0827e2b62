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
