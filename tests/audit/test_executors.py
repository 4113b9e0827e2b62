"""Work in worker processes, and what happens to work that finds no memory there."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedleak.audit.executors import Local, in_order_done
from fedleak.types import Progress, silent


def squared_here(number: int, parent: int, progress: Progress = silent) -> tuple[int, bool]:
    """(the square, whether this process did it); odd numbers find no memory in a worker: torch's allocator does not, or
    a library that asks the driver."""
    here = os.getpid() == parent
    if number == 1 and not here:
        raise torch.OutOfMemoryError("no memory left on the device")
    if number == 3 and not here:
        raise RuntimeError("CUDA error: out of memory")
    return number**2, here


def marked(number: int, parent: int, progress: Progress = silent) -> str:
    """The same, for work that reports a lack of memory as its result."""
    return "done" if os.getpid() == parent or number % 2 == 0 else "out_of_memory"


def broken(number: int, progress: Progress = silent) -> None:
    raise ValueError(f"{number} is broken")


def quiet(_: Any) -> Progress:
    return silent


def test_what_finds_no_memory_in_a_worker_is_done_again_alone() -> None:
    found = list(in_order_done(Local(2), squared_here, [1, 2, 3, 4], quiet, os.getpid()))
    assert dict(found) == {1: (1, True), 2: (4, False), 3: (9, True), 4: (16, False)}
    assert sorted(number for number, _ in found[:2]) == [2, 4]  # the others come last


def test_a_result_may_say_that_there_was_no_memory() -> None:
    found = in_order_done(
        Local(2), marked, [1, 2, 3], quiet, os.getpid(), starved=lambda result: result == "out_of_memory"
    )
    assert dict(found) == {1: "done", 2: "done", 3: "done"}


@pytest.mark.parametrize("jobs", [1, 2])
def test_any_other_exception_is_raised(jobs: int) -> None:
    with pytest.raises(ValueError, match="is broken"):
        list(in_order_done(Local(jobs), broken, [1, 2], quiet))


PARENT = """
import os, signal, sys
from fedleak.audit.executors import Local, in_order_done
from fedleak.types import silent

def say_who_and_wait(path, progress=silent):
    with open(path, "w") as pipe:
        pipe.write(f"{os.getpid()}\\n")
    signal.pause()

if __name__ == "__main__":
    list(in_order_done(Local(2), say_who_and_wait, sys.argv[1:], lambda _: silent))
"""


def said(pipe: int) -> bytes:
    """What comes through a pipe that nobody may have opened yet."""
    assert select.select([pipe], [], [], 120)[0], "no worker has begun"
    words = os.read(pipe, 100)
    os.close(pipe)
    return words


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux tells when another's child ends")
def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    pipes = [tmp_path / "one", tmp_path / "two"]
    for pipe in pipes:
        os.mkfifo(pipe)
    parent = subprocess.Popen([sys.executable, str(script), *map(str, pipes)])
    heard = [os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) for pipe in pipes]
    workers = [os.pidfd_open(int(said(pipe))) for pipe in heard]
    parent.kill()
    parent.wait()
    for worker in workers:
        assert select.select([worker], [], [], 60)[0], "the worker is still there"
        os.close(worker)
