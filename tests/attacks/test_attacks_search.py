"""The search over rows: how attempts end, who gets another start, and that rows do not disturb one another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedleak.attacks.inversion.adam import Adam
from fedleak.attacks.inversion.lbfgs import LBFGS
from fedleak.attacks.inversion.search import Attempt, Rules, search

CENTRES = torch.tensor([[0.0, 1.0], [2.0, -1.0], [3.0, 3.0], [-1.0, 0.5]], dtype=torch.float64)


def bowl(points: Tensor, victims: Tensor) -> tuple[Tensor, Tensor]:
    """Victim v wants to reach CENTRES[v]; not quadratic, so that the search takes more than a few steps."""
    away = points - CENTRES[victims]
    return (away**4 + away**2).sum(dim=1), 4 * away**3 + 2 * away


def draw(victim: int, number: int) -> Tensor:
    rng = torch.Generator().manual_seed(100 * victim + number)
    return torch.randn(2, generator=rng, dtype=torch.float64)


def run(evaluate=bowl, goals=(1e-9,) * 4, rules: Rules | None = None, optimiser=None, width: int = 10, **options):
    rules = rules or Rules(steps=60)
    return search(evaluate, draw, goals, optimiser or LBFGS(0.5, 5, 3, 0.0, 0.0), rules, width=width, **options)


def test_every_victim_reaches_its_goal_and_its_own_solution() -> None:
    for victim, (only,) in enumerate(run()):
        assert only.ending == "goal"
        assert only.best <= 1e-9
        assert only.steps < 60
        torch.testing.assert_close(only.point, CENTRES[victim], atol=1e-4, rtol=0)


@pytest.mark.parametrize("optimiser", [LBFGS(0.5, 5, 3, 0.0, 0.0), Adam(lr=0.1)])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_batched_is_one_at_a_time(optimiser: LBFGS | Adam, width: int) -> None:
    """Fewer rows than victims: victims wait, rows are taken over, and nobody notices."""
    rules = Rules(steps=25, restarts=1)
    goals = (1e-9, 0.0, 1e-9, 0.0)
    together = run(goals=goals, rules=rules, optimiser=optimiser)
    fewer = run(goals=goals, rules=rules, optimiser=optimiser, width=width)
    for many, few in zip(together, fewer, strict=True):
        assert [a.ending for a in many] == [a.ending for a in few]
        for one, other in zip(many, few, strict=True):
            torch.testing.assert_close(torch.tensor(one.trace), torch.tensor(other.trace), rtol=1e-6, atol=1e-12)
            torch.testing.assert_close(one.point, other.point, rtol=1e-6, atol=1e-8)


def test_the_best_point_is_the_one_with_the_smallest_value_seen() -> None:
    """Even where the optimiser wanders away from it."""
    seen: list[float] = []

    def watched(points: Tensor, victims: Tensor) -> tuple[Tensor, Tensor]:
        values, slopes = bowl(points, victims)
        seen.extend(values.tolist())
        return values, slopes

    ((only,),) = run(watched, goals=(0.0,), rules=Rules(steps=5), optimiser=Adam(lr=3.0))
    assert only.best == min(seen)
    value, _ = bowl(only.point[None], torch.tensor([0]))
    assert float(value) == only.best
    assert seen[-1] > only.best


def test_a_victim_that_breaks_is_restarted_and_the_others_go_on() -> None:
    calls: dict[int, int] = {}

    def breaking(points: Tensor, victims: Tensor) -> tuple[Tensor, Tensor]:
        values, slopes = bowl(points, victims)
        for at, victim in enumerate(victims.tolist()):
            calls[victim] = calls.get(victim, 0) + 1
            if victim == 1 and calls[victim] == 5:
                values[at] = float("nan")
        return values, slopes

    clean, found = run(), run(breaking, rules=Rules(steps=60, restarts=1))
    assert [a.ending for a in found[1]] == ["diverged", "goal"]
    assert found[1][0].best < float("inf")  # frozen at the best finite point it had met
    for victim in (0, 2, 3):
        assert found[victim][0].trace == clean[victim][0].trace
        assert torch.equal(found[victim][0].point, clean[victim][0].point)


def test_a_victim_that_is_never_finite_has_no_objective() -> None:
    def hopeless(points: Tensor, victims: Tensor) -> tuple[Tensor, Tensor]:
        values, slopes = bowl(points, victims)
        return torch.where(victims == 0, float("nan"), values), slopes

    found = run(hopeless, rules=Rules(steps=60, restarts=2, agreement=0.5))
    assert [a.ending for a in found[0]] == ["diverged"] * 3
    assert all(a.best == float("inf") for a in found[0])
    assert torch.equal(found[0][2].point, draw(0, 2))
    assert found[1][0].ending == "goal"


def floored(points: Tensor, victims: Tensor) -> tuple[Tensor, Tensor]:
    """Noise on the update: the objective cannot fall below 1."""
    values, slopes = bowl(points, victims)
    return values + 1, slopes


def test_an_attempt_without_progress_is_given_up() -> None:
    patient = Rules(steps=60, patience=4, min_progress=0.05)
    for (only,) in run(floored, rules=patient):
        assert only.ending == "stagnated"
        assert only.steps < 60
        assert only.best == pytest.approx(1, abs=1e-4)
        assert only.lows[-1] >= 0.95 * only.lows[-5]
        assert only.lows[-2] < 0.95 * only.lows[-6] if only.steps > 5 else True
    assert all(a[0].ending == "steps" and a[0].steps == 60 for a in run(floored))


def test_two_starts_that_agree_found_the_floor() -> None:
    rules = Rules(steps=60, restarts=5, patience=4, min_progress=0.05)
    assert [len(a) for a in run(floored, rules=rules)] == [6] * 4
    agreeing = Rules(steps=60, restarts=5, patience=4, min_progress=0.05, agreement=0.01)
    assert [len(a) for a in run(floored, rules=agreeing)] == [2] * 4


@pytest.mark.parametrize(
    ("rules", "ending", "best", "again"),
    [
        (Rules(steps=9, restarts=1), "steps", 50.0, True),
        (Rules(steps=9, restarts=1, patience=3), "steps", 50.0, False),  # it was still making progress
        (Rules(steps=9, restarts=1, patience=3), "stagnated", 50.0, True),
        (Rules(steps=9, restarts=0, patience=3), "stagnated", 50.0, False),
        (Rules(steps=9, restarts=1), "goal", 0.5, False),
        (Rules(steps=9, restarts=1), "tolerance", 50.0, True),
        (Rules(steps=9, restarts=1, enough=100.0), "tolerance", 50.0, False),
        (Rules(steps=9, restarts=1, enough=100.0), "tolerance", 101.0, True),
    ],
)
def test_who_gets_another_start(rules: Rules, ending: str, best: float, again: bool) -> None:
    attempt = Attempt(0, 0, best=best, ending=ending)
    assert rules.restart([attempt], goal=1.0) is again


def test_points_are_kept_at_the_steps_asked_for() -> None:
    ((only,),) = run(goals=(1e-9,), keep=frozenset({0, 2}))
    assert sorted(only.snapshots) == [0, 2]
    assert torch.equal(only.snapshots[0], draw(0, 0))


def test_progress_rises_to_the_whole() -> None:
    told: list[tuple[int, int]] = []
    run(width=2, progress=lambda done, total: told.append((done, total)))
    done = [d for d, _ in told]
    assert {t for _, t in told} == {4 * 60}
    assert done == sorted(done)
    assert done[-1] == 4 * 60
    assert len(set(done)) > 5


def test_no_victims_no_search() -> None:
    assert run(goals=()) == []


def test_points_are_moved_into_the_box_after_every_step() -> None:
    """The solution of victim 2 lies outside: the best point in the box is its corner."""
    seen: list[Tensor] = []

    def watched(points: Tensor, victims: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(points.clone())
        return bowl(points, victims)

    box = (torch.tensor([-1.0, -1.0]).double(), torch.tensor([2.0, 2.0]).double())
    found = run(watched, goals=(0.0,) * 4, rules=Rules(steps=80), optimiser=Adam(lr=0.2), box=box)
    assert all((points >= box[0]).all() and (points <= box[1]).all() for points in seen[1:])
    assert found[2][0].point.tolist() == [2.0, 2.0]


def test_evaluations_are_counted_for_every_attempt() -> None:
    counts = dict.fromkeys(range(4), 0)

    def counted(points: Tensor, victims: Tensor) -> tuple[Tensor, Tensor]:
        for victim in victims.tolist():
            counts[victim] += 1
        return bowl(points, victims)

    found = run(counted, rules=Rules(steps=25, restarts=1), width=2)
    assert {victim: sum(a.evaluations for a in tries) for victim, tries in enumerate(found)} == counts
