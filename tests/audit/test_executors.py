"""Work in worker processes, and what happens to work that finds no memory there."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from fedleak.audit.executors import in_order_done
from fedleak.types import Progress, silent


def squared_here(number: int, parent: int, progress: Progress = silent) -> tuple[int, bool]:
    """(the square, whether this process did it); odd numbers find no memory in a worker."""
    here = os.getpid() == parent
    if number % 2 and not here:
        raise torch.OutOfMemoryError("no memory left on the device")
    return number**2, here


def marked(number: int, parent: int, progress: Progress = silent) -> str:
    """The same, for work that reports a lack of memory as its result."""
    return "done" if os.getpid() == parent or number % 2 == 0 else "out_of_memory"


def broken(number: int, progress: Progress = silent) -> None:
    raise ValueError(f"{number} is broken")


def quiet(_: Any) -> Progress:
    return silent


def test_what_finds_no_memory_in_a_worker_is_done_again_alone() -> None:
    found = list(in_order_done(squared_here, [1, 2, 3, 4], 2, quiet, os.getpid()))
    assert dict(found) == {1: (1, True), 2: (4, False), 3: (9, True), 4: (16, False)}
    assert sorted(number for number, _ in found[:2]) == [2, 4]  # the others come last


def test_a_result_may_say_that_there_was_no_memory() -> None:
    found = in_order_done(marked, [1, 2, 3], 2, quiet, os.getpid(), starved=lambda result: result == "out_of_memory")
    assert dict(found) == {1: "done", 2: "done", 3: "done"}


@pytest.mark.parametrize("jobs", [1, 2])
def test_any_other_exception_is_raised(jobs: int) -> None:
    with pytest.raises(ValueError, match="is broken"):
        list(in_order_done(broken, [1, 2], jobs, quiet))
