"""How long `fedleak attack` will take: said once, from the pace of its first steps, where that is long."""

from __future__ import annotations

import time
from collections.abc import Callable

from fedleak.audit.estimate import duration
from fedleak.types import Progress

__all__ = ["Forecast"]

AFTER = 5.0
"""Seconds from the first step, which may prepare things, to the forecast."""
LONG = 30.0
"""Seconds that are worth a word."""


class Forecast:
    """Listens to the progress of the first of `runs` runs of an attack, and tells `say` what is left of all of them."""

    def __init__(self, runs: int, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._runs, self._say, self._clock = runs, say, clock
        self._first: tuple[float, int] | None = None
        self._said = False

    def over(self, progress: Progress) -> Progress:
        """This progress, listened to."""

        def report(done: int, total: int) -> None:
            progress(done, total)
            if not self._said:
                self._listen(done, total)

        return report

    def _listen(self, done: int, total: int) -> None:
        now = self._clock()
        if self._first is None or done <= self._first[1]:  # a prior that is trained first is no pace
            self._first = now, done
            return
        since, before = self._first
        self._said = done >= total or now - since >= AFTER
        left = (now - since) / (done - before) * (total * self._runs - done)
        if self._said and left > LONG:
            again = f": {self._runs} runs, from two starts and on noise (--no-confidence: one)"
            self._say(f"about {duration(left)} to go{again if self._runs > 1 else ''}")
