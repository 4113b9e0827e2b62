"""Benchmarks: this engine beside its rivals, on the same problem, in one run. Ratios, never bare seconds."""

from __future__ import annotations

from collections.abc import Callable

from fedleak.bench.dlg import bench_dlg
from fedleak.bench.measure import Result

__all__ = ["BENCHES", "Result"]

BENCHES: dict[str, Callable[[str], Result]] = {
    "dlg": bench_dlg,
}
