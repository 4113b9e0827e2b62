"""The work of a run as tasks of a Ray cluster: one machine or many, whole GPUs or shares of them.

RAY_ADDRESS names the cluster; without it a private one is started on this machine and ended with the run. Tasks read
the data folder and write into the run folder, so both must lie where every machine of the cluster sees them under the
same path. Plain tasks, not Ray Tune: trials are independent, and the run folder already knows which are finished.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from fedleak.audit.executors import Outcome, attempt
from fedleak.errors import RefusedError
from fedleak.types import Progress

__all__ = ["RayTasks", "ray_tasks"]

T = TypeVar("T")
R = TypeVar("R")


@contextlib.contextmanager
def ray_tasks(jobs: int | None, device: str) -> Iterator[RayTasks]:
    """A cluster that is connected, with its size known. One that was connected before stays so afterwards."""
    ray = _installed()
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, jobs)
    try:
        there = ray.cluster_resources()
        gpus = there.get("GPU", 0.0) if device != "cpu" else 0.0
        if device != "cpu" and not gpus:
            raise RefusedError(f"device={device!r}: the Ray cluster has no GPU; use --device cpu")
        most = gpus or there.get("CPU", 1.0)
        yield RayTasks(ray, max(1, int(most)) if jobs is None else jobs, gpus)
    finally:
        if ours:
            ray.shutdown()


def _installed() -> ModuleType:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise RefusedError("executor='ray': Ray is not installed; pip install 'fedleak[ray]'") from None


def _connect(ray: ModuleType, jobs: int | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # an audit tells nobody that it ran
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as Ray will do by itself, without its warning
    address = os.environ.get("RAY_ADDRESS")
    # Tasks find the modules that this process finds: a network of the user's own may lie beside the specification.
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    settings: dict[str, Any] = {"runtime_env": {"env_vars": {"PYTHONPATH": paths}}}
    if not address:  # a cluster that runs already has its size
        settings |= {"num_cpus": jobs, "include_dashboard": False}
    try:
        if address and ":" in address:
            # Ray itself would knock for minutes.
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **settings)
    except (OSError, RuntimeError, ValueError) as error:
        where = f"RAY_ADDRESS={address!r}" if address else "a cluster of its own"
        reason = str(error).splitlines()[0]
        raise RefusedError(f"executor='ray': no connection to {where} ({reason}); use --executor local") from error


@dataclass(frozen=True)
class RayTasks:
    """At most `jobs` tasks at a time, which share the GPUs evenly."""

    ray: ModuleType
    jobs: int
    gpus: float

    def together(self, work: Callable[..., R], items: Sequence[T], common: tuple[Any, ...]) -> Iterator[Outcome[R]]:
        # Ray counts in ten-thousandths; rounding up would leave the last task without its share.
        share = min(1.0, math.floor(1e4 * self.gpus / self.jobs) / 1e4)
        task = self.ray.remote(attempt).options(num_cpus=1, num_gpus=share)
        waiting = list(enumerate(items))
        running: list[Any] = []
        while waiting or running:
            while waiting and len(running) < self.jobs:
                number, item = waiting.pop(0)
                running.append(task.remote(work, number, item, common))
            finished, running = self.ray.wait(running, num_returns=1)
            for found in finished:
                yield self._result(found)

    def alone(self, work: Callable[..., R], item: T, common: tuple[Any, ...], progress: Progress) -> R:
        """On the cluster too: this process may have no device. What finds no memory on a whole GPU is at its end."""
        task = self.ray.remote(_plainly).options(num_cpus=1, num_gpus=min(1.0, self.gpus))
        result: R = self._result(task.remote(work, item, common))
        return result

    def _result(self, found: Any) -> Any:
        try:
            return self.ray.get(found)
        except self.ray.exceptions.RayTaskError as error:
            # What went wrong, not Ray's account of where: a user's mistake has no traceback.
            raise error.cause from None


def _plainly(work: Callable[..., R], item: T, common: tuple[Any, ...]) -> R:
    return work(item, *common)
