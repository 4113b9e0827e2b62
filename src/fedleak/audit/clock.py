"""When work on rows began and ended, and how long it took: all that may differ between two equal runs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from fedleak.audit.rows import Row

__all__ = ["Clock"]


class Clock:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._started, self._ticks = datetime.now(UTC), time.monotonic()

    def on(self, rows: Iterable[Row]) -> list[Row]:
        """The rows with the time until now."""
        seconds = round(time.monotonic() - self._ticks, 3)
        start, end = (at.isoformat(timespec="seconds") for at in (self._started, datetime.now(UTC)))
        return [replace(row, seconds=seconds, started=start, finished=end) for row in rows]
