"""Doing many independent pieces of work: here, in worker processes, or (audit/ray_tasks.py) on a Ray cluster."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from fedleak.errors import RefusedError
from fedleak.learning.memory import ran_out_of_memory
from fedleak.types import Progress

__all__ = ["EXECUTORS", "Executor", "Local", "Outcome", "attempt", "check_executor", "in_order_done", "workers"]

EXECUTORS = ("local", "ray")

T = TypeVar("T")
R = TypeVar("R")
Outcome = tuple[int, tuple[R] | None]
"""The number of an item, and its result in a tuple of one; none where it has to be done alone."""


class Executor(Protocol):
    """Where work is done, and how much of it at a time."""

    @property
    def jobs(self) -> int: ...

    def together(self, work: Callable[..., R], items: Sequence[T], common: tuple[Any, ...]) -> Iterator[Outcome[R]]:
        """Every item once, as each is finished."""

    def alone(self, work: Callable[..., R], item: T, common: tuple[Any, ...], progress: Progress) -> R:
        """One item with nothing beside it."""


@contextlib.contextmanager
def workers(executor: str, jobs: int | None, device: str) -> Iterator[Executor]:
    """What does the work of a run. `jobs` None: as many as there are cores (on a GPU: one, a batch fills it)."""
    check_executor(executor)
    if executor == "local":
        yield Local(default_jobs(device) if jobs is None else jobs)
        return
    from fedleak.audit.ray_tasks import ray_tasks

    with ray_tasks(jobs, device) as found:
        yield found


def check_executor(executor: str) -> None:
    if executor not in EXECUTORS:
        raise RefusedError(f"executor={executor!r}: choose {' or '.join(EXECUTORS)}")


def default_jobs(device: str) -> int:
    """One process per core; on a GPU one, because a batch already fills it."""
    return 1 if device != "cpu" else max(1, len(os.sched_getaffinity(0)))


def in_order_done(
    executor: Executor,
    work: Callable[..., R],
    items: Sequence[T],
    progress: Callable[[T], Progress],
    *common: Any,
    starved: Callable[[R], bool] = lambda _: False,
) -> Iterator[tuple[T, R]]:
    """(item, result) as each is finished. `work(item, *common)` also takes `progress=` when it runs in this process.

    An exception in a worker is raised here. Workers share the memory of a device: what found none left there (it raised
    so, or its result is `starved`) is done again at the end, alone.
    """
    late = []
    for number, result in executor.together(work, items, common):
        if result is None or starved(result[0]):
            late.append(items[number])
        else:
            yield items[number], result[0]
    for item in late:
        yield item, executor.alone(work, item, common, progress(item))


class Local:
    """Worker processes on this machine, which end with this one. With one job everything is done in this process."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._spawned = False

    def together(self, work: Callable[..., R], items: Sequence[T], common: tuple[Any, ...]) -> Iterator[Outcome[R]]:
        if self.jobs == 1 or len(items) < 2:
            yield from ((number, None) for number in range(len(items)))
            return
        from joblib import Parallel, delayed

        self._spawned = True
        parallel = Parallel(n_jobs=min(self.jobs, len(items)), return_as="generator_unordered", batch_size=1)
        yield from parallel(delayed(_in_worker)(work, number, item, common) for number, item in enumerate(items))

    def alone(self, work: Callable[..., R], item: T, common: tuple[Any, ...], progress: Progress) -> R:
        if self._spawned:
            _dismiss_workers()
            self._spawned = False
        return work(item, *common, progress=progress)


def _dismiss_workers() -> None:
    """Idle workers would keep what they hold of the device."""
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)


def attempt(work: Callable[..., R], number: int, item: T, common: tuple[Any, ...]) -> Outcome[R]:
    """What a worker does with one item."""
    try:
        return number, (work(item, *common),)
    except (RuntimeError, MemoryError) as error:
        if not ran_out_of_memory(error):
            raise
        return number, None


def _in_worker(work: Callable[..., R], number: int, item: T, common: tuple[Any, ...]) -> Outcome[R]:
    _end_with_parent()
    return attempt(work, number, item, common)


@functools.cache
def _end_with_parent() -> None:
    """A worker whose parent was killed would work on to the end of a trial that nobody waits for."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, name="end with the parent", daemon=True).start()
