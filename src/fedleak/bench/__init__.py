"""Benchmarks: this engine beside its rivals, on the same problem, in one run. Ratios, never bare seconds."""

from __future__ import annotations

from collections.abc import Callable

from fedleak.bench.dlg import bench_dlg
from fedleak.bench.fedavg import bench_fedavg
from fedleak.bench.federation import bench_federation
from fedleak.bench.measure import Result
from fedleak.bench.pli import bench_pli

__all__ = ["BENCHES", "Result"]

BENCHES: dict[str, Callable[[str], Result]] = {
    "dlg": bench_dlg,
    "fedavg": bench_fedavg,
    "pli": bench_pli,
    "federation": bench_federation,
}
