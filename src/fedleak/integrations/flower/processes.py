"""Starting and ending processes without losing one.

Flower's programs start others and detach some of them, so a process group does not hold them together. All of them
inherit an environment variable instead, and what carries it is what is ended, nothing else.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedleak.errors import RefusedError

__all__ = ["MARK", "end_marked", "free_ports", "marked", "wait_for_port"]

MARK = "FEDLEAK_DEPLOYMENT"


def free_ports(count: int) -> list[int]:
    """Different loopback ports that nobody uses now."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()


def wait_for_port(
    port: int, processes: Sequence[subprocess.Popen[bytes]], seconds: float, logs: Callable[[], str]
) -> None:
    """Until somebody listens there; a RefusedError with the logs if a process ends or the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if any(process.poll() is not None for process in processes):
            raise RefusedError(f"superlink: ended while starting\n{logs()}")
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise RefusedError(f"superlink: nobody listens on port {port} after {seconds:g} s\n{logs()}")


def marked(mark: str) -> list[int]:
    """The running processes that carry this mark. Empty where the system has no /proc."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0") and _alive(entry):
                found.append(int(entry.name))
        except OSError:
            continue  # it ended meanwhile, or it is somebody else's
    return found


def _alive(entry: Path) -> bool:
    state = (entry / "stat").read_text().rpartition(")")[2].split()
    return bool(state) and state[0] != "Z"


def end_marked(processes: Sequence[subprocess.Popen[bytes]], mark: str, seconds: float = 10.0) -> None:
    """Ask everything with this mark to end, then make it."""
    for process in reversed(processes):
        process.terminate()
    _signal(marked(mark), signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and (marked(mark) or any(p.poll() is None for p in processes)):
        time.sleep(0.1)
    for process in processes:
        process.kill()
    _signal(marked(mark), signal.SIGKILL)
    for process in processes:
        process.wait()


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
