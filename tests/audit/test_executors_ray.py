"""The same work on a real Ray cluster: the same rows, errors as they were raised, nothing left behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small import SMALL
from test_executors import broken, marked, quiet, squared_here

from fedleak.audit import ray_tasks
from fedleak.audit.device import choose_device
from fedleak.audit.executors import Executor, in_order_done, workers
from fedleak.audit.rows import MAY_DIFFER
from fedleak.audit.runner import run_audit
from fedleak.audit.spec import make_spec
from fedleak.errors import DataError, RefusedError
from fedleak.types import Progress, silent

OWN = """
from torch import nn

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 40))
"""


def missing_file(name: str, progress: Progress = silent) -> None:
    raise DataError(f"{name} is not here")


def lines(out: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in MAY_DIFFER} for row in rows]


def test_without_ray_the_refusal_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(RefusedError, match=r"Ray is not installed; pip install 'fedleak\[ray\]'"),
        workers("ray", 2, "cpu"),
    ):
        pass


def test_another_executor_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="executor='dask': choose local or ray"):
        run_audit(make_spec(SMALL), tmp_path / "run", data_root=tmp_path, executor="dask")
    assert not (tmp_path / "run").exists()


def test_a_cluster_may_have_the_gpu_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert choose_device("cuda", "ray") == "cuda"
    assert choose_device("auto", "ray") == "cpu"
    with pytest.raises(RefusedError, match="no CUDA device here"):
        choose_device("cuda", "local")


def test_a_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound and never listening: a connection is refused at once
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(RefusedError, match=f"no connection to RAY_ADDRESS='{address}'"), workers("ray", 2, "cpu"):
            pass


class Tasks:
    """What `RayTasks` asks of Ray: it notes the share of a GPU that tasks asked for, and runs them at once."""

    def __init__(self) -> None:
        self.shares: list[float] = []
        self.most = 0

    def remote(self, function: Any) -> Any:
        outer = self

        class Task:
            def options(self, *, num_cpus: int, num_gpus: float) -> Any:
                outer.shares.append(num_gpus)
                return self

            def remote(self, *arguments: Any) -> Any:
                return function(*arguments)

        return Task()

    def wait(self, running: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        self.most = max(self.most, len(running))
        return running[:num_returns], running[num_returns:]

    def get(self, found: Any) -> Any:
        return found

    class exceptions:  # noqa: N801  (Ray's name)
        RayTaskError = ArithmeticError


@pytest.mark.parametrize(("jobs", "gpus", "share"), [(3, 1.0, 0.3333), (2, 4.0, 1.0), (4, 0.0, 0.0)])
def test_tasks_share_the_gpus_and_never_run_more_than_jobs_at_a_time(jobs: int, gpus: float, share: float) -> None:
    ray = Tasks()
    tasks = ray_tasks.RayTasks(ray, jobs, gpus)  # type: ignore[arg-type]
    found = dict(in_order_done(tasks, squared_here, [2, 4, 6, 8, 10], quiet, os.getpid()))
    assert found == {n: (n * n, True) for n in (2, 4, 6, 8, 10)}
    assert ray.shares == [share]
    assert ray.most == jobs


@pytest.fixture(scope="module")
def cluster() -> Iterator[Executor]:
    pytest.importorskip("ray", reason="Ray is not installed")
    with workers("ray", 2, "cpu") as found:
        yield found


@pytest.mark.slow
def test_results_come_back_and_what_found_no_memory_is_done_again_alone(cluster: Executor) -> None:
    assert cluster.jobs == 2
    found = list(in_order_done(cluster, squared_here, [2, 4, 6], quiet, os.getpid()))
    assert sorted(found) == [(2, (4, False)), (4, (16, False)), (6, (36, False))]
    again = in_order_done(cluster, marked, [2, 1], quiet, 0, starved=lambda result: result == "out_of_memory")
    assert list(again) == [(2, "done"), (1, "out_of_memory")]  # still none on a whole device: that is its result


@pytest.mark.slow
def test_an_error_is_the_one_that_was_raised(cluster: Executor) -> None:
    with pytest.raises(ValueError, match=r"^1 is broken$"):
        list(in_order_done(cluster, broken, [1], quiet))
    with pytest.raises(DataError, match=r"^mnist is not here$"):
        list(in_order_done(cluster, missing_file, ["mnist"], quiet))


@pytest.mark.slow
def test_an_audit_on_ray_writes_the_rows_of_a_local_one(cluster: Executor, tmp_path: Path) -> None:
    for executor in ("local", "ray"):
        run_audit(make_spec(SMALL), tmp_path / executor, data_root=tmp_path, jobs=2, executor=executor)
    assert lines(tmp_path / "ray") == lines(tmp_path / "local")
    local, ray = (sorted(path.name for path in (tmp_path / name / "artifacts").iterdir()) for name in ("local", "ray"))
    assert ray == local


@pytest.mark.slow
def test_ray_is_left_as_it_was_found(cluster: Executor) -> None:
    import ray

    with workers("ray", 2, "cpu"):
        pass
    assert ray.is_initialized()


@pytest.mark.slow
def test_tasks_find_a_network_that_lies_beside_the_specification(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    (tmp_path / "my_net.py").write_text(OWN)
    (tmp_path / "spec.toml").write_text(
        'metrics = ["psnr", "recovered"]\nseeds = [0]\n[data]\nname = "orl"\nsize = 8\nclients = 2\n'
        '[model]\nname = "my_net:net"\n[protocol]\nname = "fedsgd"\nexamples = 1\n'
        '[[attacks]]\nname = "dlm_plus"\nsteps = 2\nrestarts = 0\n'
    )
    command = [
        sys.executable,
        "-m",
        "fedleak",
        "audit",
        "spec.toml",
        "--allow-code",
        "--executor",
        "ray",
        "--jobs",
        "2",
    ]
    done = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["status"] for row in rows if row["where"]["attack"] == "dlm_plus"] == ["ok", "ok"]
