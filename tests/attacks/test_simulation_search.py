"""Adam over many rows at once, its schedules, rows that leave the finite numbers, and memory that runs out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from fedavg_scene import rng
from torch import Tensor

from fedleak.attacks.simulation.search import Evaluate, Schedule, search

TARGET = torch.tensor([[1.0, -2.0], [0.5, 3.0], [-4.0, 0.0]])


def quartic(rows: Sequence[int]) -> Evaluate:
    """|x - target|^4, every row with its own target."""

    def evaluate(points: Tensor, step: int) -> tuple[Tensor, Tensor]:
        apart = points - TARGET[list(rows)]
        square = apart.square().sum(dim=1, keepdim=True)
        return square[:, 0].square(), 4 * square * apart

    return evaluate


def test_it_is_torchs_adam_with_the_authors_continuous_decay() -> None:
    first = torch.randn(3, 2, generator=rng())
    found, _ = search(quartic, first, Schedule(0.4, 30, "exponential", 0.995, 10), width=8)
    theirs = first.clone().requires_grad_()
    optimiser = torch.optim.Adam([theirs], lr=0.4)
    trace = []
    for step in range(31):
        for group in optimiser.param_groups:
            group["lr"] = 0.4 * 0.995 ** (step / 10)
        value = (theirs - TARGET).square().sum(dim=1).square()
        trace.append(value.detach())
        if step < 30:
            optimiser.zero_grad()
            value.sum().backward()
            optimiser.step()
    torch.testing.assert_close(torch.stack([one.point for one in found]), theirs.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        torch.stack([one.trace for one in found]), torch.stack(trace, dim=1), rtol=1e-3, atol=1e-4
    )
    assert [one.objective for one in found] == pytest.approx(trace[-1].tolist(), rel=1e-3)
    assert all(one.finished for one in found)


def test_schedules() -> None:
    assert Schedule(0.1, 40, "exponential", 0.5, 20)(10) == pytest.approx(0.1 * math.sqrt(0.5))
    cosine = Schedule(2.0, 40, "cosine")
    assert [cosine(step) for step in (0, 20, 40)] == pytest.approx([2.0, 1.0, 0.0], abs=1e-12)
    assert Schedule(2.0, 40)(39) == 2.0


@pytest.mark.parametrize("where", ["value", "slope"])
def test_a_row_that_is_no_longer_finite_ends_at_its_last_finite_iterate(where: str) -> None:
    def make(rows: Sequence[int]) -> Evaluate:
        plain = quartic(rows)

        def evaluate(points: Tensor, step: int) -> tuple[Tensor, Tensor]:
            values, slopes = plain(points, step)
            if step == 3 and 1 in rows:
                (values if where == "value" else slopes)[list(rows).index(1)] = math.nan
            return values, slopes

        return evaluate

    first = torch.randn(3, 2, generator=rng())
    broken, _ = search(make, first, Schedule(0.1, 6), width=3, keep=frozenset({2}))
    whole, _ = search(quartic, first, Schedule(0.1, 6), width=3)
    assert torch.equal(broken[0].point, whole[0].point)
    assert torch.equal(broken[2].point, whole[2].point)
    assert not broken[1].finished
    assert torch.equal(broken[1].point.cpu(), broken[1].kept[2])
    assert broken[1].objective == float(whole[1].trace[2])
    assert bool(broken[1].trace.isfinite().all())


def test_a_row_that_was_never_finite_has_no_objective() -> None:
    def make(rows: Sequence[int]) -> Evaluate:
        return lambda points, step: (torch.full((len(points),), math.nan), torch.zeros_like(points))

    found, _ = search(make, torch.ones(1, 2), Schedule(0.1, 2), width=1)
    assert found[0].objective == math.inf
    assert torch.equal(found[0].point, torch.ones(2))


def test_where_memory_runs_out_the_rows_are_halved_and_nothing_is_done_twice() -> None:
    calls: list[tuple[int, int]] = []

    def make(rows: Sequence[int]) -> Evaluate:
        plain = quartic(rows)

        def evaluate(points: Tensor, step: int) -> tuple[Tensor, Tensor]:
            if len(rows) > 1 and step == 2:
                raise torch.OutOfMemoryError("too much")
            calls.extend((row, step) for row in rows)
            return plain(points, step)

        return evaluate

    first = torch.randn(3, 2, generator=rng())
    found, width = search(make, first, Schedule(0.1, 5), width=8)
    whole, _ = search(quartic, first, Schedule(0.1, 5), width=8)
    assert width == 1
    assert sorted(calls) == [(row, step) for row in range(3) for step in range(6)]
    for mine, theirs in zip(found, whole, strict=True):
        torch.testing.assert_close(mine.point, theirs.point)
        torch.testing.assert_close(mine.trace, theirs.trace)


def test_a_single_row_that_does_not_fit_says_so() -> None:
    def make(rows: Sequence[int]) -> Evaluate:
        def evaluate(points: Tensor, step: int) -> tuple[Tensor, Tensor]:
            raise torch.OutOfMemoryError("too much")

        return evaluate

    with pytest.raises(torch.OutOfMemoryError):
        search(make, torch.zeros(2, 2), Schedule(0.1, 2), width=2)


def test_chunks_change_nothing_and_a_box_holds() -> None:
    first = torch.randn(3, 2, generator=rng())
    box = (torch.tensor([-0.5, -0.5]), torch.tensor([0.5, 1.0]))
    seen: list[tuple[int, int]] = []
    narrow, width = search(
        quartic, first, Schedule(0.3, 9), width=1, box=box, progress=lambda done, total: seen.append((done, total))
    )
    wide, _ = search(quartic, first, Schedule(0.3, 9), width=3, box=box)
    assert width == 1
    assert seen[-1] == (27, 27)
    for mine, theirs in zip(narrow, wide, strict=True):
        assert torch.equal(mine.point, theirs.point)
        assert bool((mine.point >= box[0]).all() and (mine.point <= box[1]).all())
