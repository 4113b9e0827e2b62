"""How benchmarks measure: interleaved repeats, medians, peak memory, and the arithmetic floor of the device."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

__all__ = ["Result", "floor_seconds", "interleaved", "peak_memory"]


@dataclass(frozen=True)
class Result:
    """A ratio is the rival's seconds over ours; None where the rival is not installed or not part of the benchmark."""

    name: str
    device: str
    ratios: Mapping[str, float | None]
    seconds: Mapping[str, float]
    peak_memory: int
    floor_seconds: float
    conditions: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def interleaved(contenders: Mapping[str, Callable[[], int]], repeats: int, device: str) -> dict[str, float]:
    """Median seconds of each contender per piece of work, of which it returns how many it did.

    One warm-up; then one after the other in every repeat, so that a slow spell of the machine hits all of them.
    """
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, work in contenders.items():
            _wait(device)
            clock = time.perf_counter()
            pieces = work()
            _wait(device)
            if repeat:
                spent[name].append((time.perf_counter() - clock) / pieces)
    return {name: statistics.median(times) for name, times in spent.items()}


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak_memory(device: str) -> int:
    """Bytes: of the GPU where there is one, else of this process."""
    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def floor_seconds(operations: float, device: str) -> float:
    """The time that many floating-point operations need at the speed of a large matrix product on this device."""
    size = 8192 if device == "cuda" else 1024
    a = torch.ones(size, size, device=device)
    best = float("inf")
    for _ in range(4):
        _wait(device)
        clock = time.perf_counter()
        a @ a
        _wait(device)
        best = min(best, time.perf_counter() - clock)
    return operations / (2 * size**3 / best)
