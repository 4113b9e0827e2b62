"""`fedleak attack` says how long it will take, once, where that is long."""

from __future__ import annotations

import pytest

from fedleak.commands.forecast import Forecast
from fedleak.types import silent

FOUR = ": 4 runs, from two starts and on noise (--no-confidence: one)"


@pytest.mark.parametrize(
    ("runs", "pace", "steps", "said"),
    [
        (1, 1.0, 80, ["about 74 s to go"]),  # five seconds after the first step 6 of 80 are done
        (4, 1.0, 100, [f"about 7 min to go{FOUR}"]),
        (1, 0.1, 100, []),  # ten seconds in all
        (4, 0.1, 100, [f"about 35 s to go{FOUR}"]),  # 52 of 400 are done
        (4, 4.0, 3, [f"about 36 s to go{FOUR}"]),  # 3 of 12, where one run has ended
        (4, 60.0, 1, []),  # a single step says nothing
    ],
)
def test_the_pace_of_the_first_steps_is_scaled_up(runs: int, pace: float, steps: int, said: list[str]) -> None:
    now, heard, seen = 0.0, [], []
    forecast = Forecast(runs, heard.append, lambda: now)
    for _ in range(runs):
        report = forecast.over(lambda done, total: seen.append((done, total)))
        for done in range(1, steps + 1):
            now += pace
            report(done, steps)
    assert heard == said
    assert seen == [(done, steps) for done in range(1, steps + 1)] * runs, "progress goes on as before"


def test_work_that_stands_still_is_no_pace() -> None:
    """A prior is trained before the first step: its progress is 0, over and over."""
    now, heard = 0.0, []
    report = Forecast(1, heard.append, lambda: now).over(silent)
    for done in [0] * 20 + list(range(10)):
        now += 1.0
        report(done, 50)
    assert heard == ["about 45 s to go"]
