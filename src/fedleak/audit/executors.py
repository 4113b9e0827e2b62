"""Doing many independent pieces of work: here, or in worker processes."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from fedleak.types import Progress

__all__ = ["in_order_done"]

T = TypeVar("T")
R = TypeVar("R")


def in_order_done(
    work: Callable[..., R],
    items: Sequence[T],
    jobs: int,
    progress: Callable[[T], Progress],
    *common: Any,
    starved: Callable[[R], bool] = lambda _: False,
) -> Iterator[tuple[T, R]]:
    """(item, result) as each is finished. `work(item, *common)` also takes `progress=` when it runs in this process.

    Workers are spawned processes that end with this one; an exception in a worker is raised here. Workers share the
    memory of a device: what found none left there (it raised so, or its result is `starved`) is done again at the end,
    alone, here.
    """
    late = list(items)
    if jobs > 1 and len(items) > 1:
        late = []
        for number, result in _spread(work, items, jobs, common):
            if result is None or starved(result[0]):
                late.append(items[number])
            else:
                yield items[number], result[0]
        if late:
            _dismiss_workers()
    for item in late:
        yield item, work(item, *common, progress=progress(item))


def _spread(
    work: Callable[..., R], items: Sequence[T], jobs: int, common: tuple[Any, ...]
) -> Iterator[tuple[int, tuple[R] | None]]:
    """(number of the item, its result in a tuple of one, none where there was no memory), from worker processes."""
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=min(jobs, len(items)), return_as="generator_unordered", batch_size=1)
    yield from parallel(delayed(_numbered)(work, number, item, common) for number, item in enumerate(items))


def _dismiss_workers() -> None:
    """Idle workers would keep what they hold of the device."""
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)


def _numbered(work: Callable[..., R], number: int, item: T, common: tuple[Any, ...]) -> tuple[int, tuple[R] | None]:
    from fedleak.learning.memory import ran_out_of_memory

    _end_with_parent()
    try:
        return number, (work(item, *common),)
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        return number, None


@functools.cache
def _end_with_parent() -> None:
    """A worker whose parent was killed would work on to the end of a trial that nobody waits for."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, name="end with the parent", daemon=True).start()
