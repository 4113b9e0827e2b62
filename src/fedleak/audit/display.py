"""Progress for people: a bar on a terminal, plain lines otherwise, nothing when asked. Always on stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from fedleak.types import Progress, silent

__all__ = ["Display"]


class Display:
    """What the runner tells while it works. `fancy` draws bars; otherwise one line per finished piece."""

    def __init__(self, *, quiet: bool = False, fancy: bool | None = None) -> None:
        self.quiet = quiet
        self.fancy = (sys.stderr.isatty() if fancy is None else fancy) and not quiet
        self._bar: Any = None
        self._task: Any = None
        self._inner: Any = None
        self._name, self._done, self._total = "", 0, 0

    @staticmethod
    def silent() -> Display:
        return Display(quiet=True)

    def note(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def plan(self, trials: int, missing: int, federations: int, jobs: int) -> None:
        kept = "" if missing == trials else f", {trials - missing} of them done before"
        simulated = f"{federations} federation{'' if federations == 1 else 's'} to simulate"
        self.note(f"{trials} trial{'' if trials == 1 else 's'}{kept}; {simulated}; {jobs} at a time")

    @contextlib.contextmanager
    def stage(self, name: str, total: int) -> Iterator[None]:
        self._name, self._done, self._total = name, 0, total
        if not self.fancy or not total:
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with RichProgress(*columns, console=Console(stderr=True), transient=True) as bar:
            self._bar, self._task, self._inner = bar, bar.add_task(name, total=total), None
            yield
            self._bar = None

    def done(self, text: str) -> None:
        """One piece is finished."""
        self._done += 1
        if self.fancy and self._bar is not None:
            self._bar.update(self._task, advance=1)
            self._bar.console.print(f"  {text}", highlight=False, markup=False)
        else:
            self.note(f"[{self._name} {self._done}/{self._total}] {text}")

    def inner(self, item: Any) -> Progress:
        """A callback for the steps of one piece of work that runs in this process."""
        if not self.fancy or self._bar is None:
            return silent
        bar = self._bar
        if self._inner is not None:
            bar.remove_task(self._inner)
        self._inner = task = bar.add_task("  " + (item.label() if hasattr(item, "label") else "simulating"), total=None)
        last = [0.0]

        def report(done: int, total: int) -> None:
            now = time.monotonic()
            if now - last[0] > 0.1 or done >= total:  # redrawing more often would cost more than the work
                last[0] = now
                bar.update(task, completed=done, total=total)

        return report
