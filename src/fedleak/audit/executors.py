"""Doing many independent pieces of work: here, or in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from fedleak.types import Progress

__all__ = ["in_order_done"]

T = TypeVar("T")
R = TypeVar("R")


def in_order_done(
    work: Callable[..., R], items: Sequence[T], jobs: int, progress: Callable[[T], Progress], *common: Any
) -> Iterator[tuple[T, R]]:
    """(item, result) as each is finished. `work(item, *common)` also takes `progress=` when it runs in this process.

    Workers are spawned processes that end with this one; an exception in a worker is raised here.
    """
    if jobs <= 1 or len(items) <= 1:
        for item in items:
            yield item, work(item, *common, progress=progress(item))
        return
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=min(jobs, len(items)), return_as="generator_unordered", batch_size=1)
    calls = (delayed(_numbered)(work, number, item, common) for number, item in enumerate(items))
    for number, result in parallel(calls):
        yield items[number], result


def _numbered(work: Callable[..., R], number: int, item: T, common: tuple[Any, ...]) -> tuple[int, R]:
    return number, work(item, *common)
