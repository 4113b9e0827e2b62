"""A limit on the time of one trial: the attack is stopped between two of its steps, and the row says so."""

from __future__ import annotations

import time

from fedleak.types import Progress

__all__ = ["TimedOutError", "within"]


class TimedOutError(Exception):
    """A trial that took longer than the specification allows."""


def within(seconds: float | None, progress: Progress) -> Progress:
    """The same progress callback, which raises once the time is over. None: no limit.

    Every attack reports its progress, so none has to know of the limit.
    """
    if seconds is None:
        return progress
    end = time.monotonic() + seconds

    def report(done: int, total: int) -> None:
        if time.monotonic() > end and done < total:  # what has reached its last step is let through
            raise TimedOutError(
                f"time_limit={seconds:g} s was over at step {done} of {total}; raise it or take fewer steps"
            )
        progress(done, total)

    return report
