"""The real parts: superlink and supernodes as processes of their own, and the simulation engine on Ray.

Every process carries a mark in its environment; each test looks for it afterwards and ends what is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedleak[flower]'")
pytest.importorskip("ray", reason="ray is not installed: pip install 'fedleak[flower]'")

import fedleak
from fedleak.errors import RefusedError
from fedleak.integrations.flower import Deployment, Node
from fedleak.integrations.flower.deployment import QUIET
from fedleak.integrations.flower.installed import flower_version
from fedleak.integrations.flower.processes import MARK, end_marked, marked

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_fedavg"
NODES = [Node({"partition-id": number, "num-partitions": 2}) for number in range(2)]

pytestmark = pytest.mark.slow


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The auditable copy of the example."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import audit

    shutil.copytree(EXAMPLE, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__", "audit.py"))
    audit.apply_readme(tmp_path / "app", defended=False)
    return tmp_path / "app"


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    name = f"test-{os.getpid()}-{tmp_path.name}"
    yield name
    end_marked([], name)


def test_flower_audit_recovers_photographs_and_the_documented_defense_stops_it() -> None:
    """`audit.py --json`: undefended and defended, each a deployment of three processes and what they start."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "audit.py"), "--json"], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["undefended"]["recovered"] >= 1
    assert found["undefended"]["best_ssim"] > 0.9
    assert found["undefended"]["recovered"] > found["undefended"]["null_recovered"]
    assert found["defended"]["recovered"] == 0
    assert found["defended"]["best_ssim"] < 0.9
    assert found["undefended"]["accuracy"] > 0.5, "four people: guessing gives 25 %"
    assert found["defended"]["accuracy"] > 0.5
    # How little it is stands in the example's README; a disk that others keep busy may hold a round up for a while.
    assert all(0 < arm["overhead"] < 0.5 for arm in found.values()), "recording is not what a round waits for"


def answers_http2(port: int) -> bool:
    """gRPC is HTTP/2: its server answers the preface with a SETTINGS frame, where HTTP/1.1 sends a line of text."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as link:
        link.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        head = link.recv(9)
    return len(head) == 9 and head[3] == 4


def test_flower_deployment_with_a_failing_client_is_recorded_and_leaves_no_process(app: Path) -> None:
    client = app / "flower_fedavg" / "client_app.py"
    failing = (
        '    net = Net()\n    if context.node_config["partition-id"] == 1:\n        raise OSError("no such disk")\n'
    )
    client.write_text(client.read_text().replace("    net = Net()\n", failing))
    with Deployment(app, NODES) as running:
        log = running.run({"num-server-rounds": 1})
        here = marked(running.mark)
        seen = fedleak.load_transcript(running.folder / "recording")
        assert [len(r.received) for r in seen.rounds] == [1]
        assert seen.rounds[0].received[0].disclosed["samples"] == 4
        problems = (running.folder / "recording" / "problems.txt").read_text()
        assert running.transport == ("grpc" if flower_version() < (1, 40) else "http")
        assert answers_http2(running.port) == (running.transport == "grpc")
    assert "RecordedFedAvg" in log
    assert "replied with error" in problems
    assert len(problems.splitlines()) == 1
    assert len(here) >= 3, "a superlink and two supernodes"
    assert marked(running.mark) == []
    assert not running.folder.exists()


def test_flower_deployment_whose_server_fails_says_so_and_leaves_no_process(app: Path) -> None:
    server = app / "flower_fedavg" / "server_app.py"
    server.write_text(server.read_text().replace("torch.manual_seed(0)", 'raise KeyError("wrong key")'))
    running = Deployment(app, NODES)
    with pytest.raises(RefusedError, match="wrong key"), running:
        running.run()
    assert marked(running.mark) == []


def test_flower_server_killed_in_a_round_leaves_the_finished_ones(app: Path) -> None:
    """Round 2 never ends, because the clients wait in it; then everything is killed at once."""
    client = app / "flower_fedavg" / "client_app.py"
    waits = '    config = message.content["config"]\n    while config["server-round"] == 2:\n        time.sleep(1)\n'
    source = client.read_text().replace('    config = message.content["config"]\n', waits)
    client.write_text(source.replace("from flwr.app import", "import time\n\nfrom flwr.app import", 1))
    with Deployment(app, NODES) as running:
        started = running.launch({"num-server-rounds": 3})
        recording = running.folder / "recording"
        deadline = time.monotonic() + 300
        while not rounds_in(recording) and time.monotonic() < deadline:
            assert started.poll() is None, started.communicate()[0]
            time.sleep(0.2)
        kill_all(running.mark)
        started.communicate()
        assert marked(running.mark) == []
        seen = fedleak.load_transcript(recording)
        assert [r.index for r in seen.rounds] == [1]
        assert [len(r.received) for r in seen.rounds] == [2]
        finding = fedleak.attack(seen, "dlm_plus", model=own_net(), steps=1, restarts=0, device="cpu")
        assert [victim.status for victim in finding.victims] == ["ok", "ok"]


def kill_all(mark: str) -> None:
    """SIGKILL until nothing is left: a process may be starting another at that moment, and dying takes one too."""
    deadline = time.monotonic() + 60
    while (left := marked(mark)) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


def rounds_in(recording: Path) -> int:
    return len(fedleak.load_transcript(recording).rounds) if (recording / "manifest.json").exists() else 0


def own_net() -> Any:
    from flower_fedavg import task

    return task.Net


SIMULATION = """
import sys
sys.path.insert(0, "app")
from flower_fedavg.client_app import app as client
from flower_fedavg import task
from fedleak.integrations.flower import record
import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
server = ServerApp()
@server.main()
def main(grid, context):
    torch.manual_seed(0)
    given = dict(out="recording", model=task.Net, input_shape=(1, 16, 16), normalisation=(0.5, 0.2))
    strategy = record(FedAvg(fraction_evaluate=0.0), **given)
    config = ConfigRecord({"local-epochs": 1, "learning-rate": 0.3})
    strategy.start(grid, ArrayRecord(task.Net().state_dict()), num_rounds=1, train_config=config)
resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
run_simulation(server, client, num_supernodes=2, backend_config=resources)
"""


def test_flower_simulation_on_ray_is_recorded_and_attacked(app: Path, mark: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIMULATION],
        cwd=app.parent,
        env={**os.environ, **QUIET, MARK: mark, "PYTHONPATH": str(app)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    end_marked([], mark)
    assert marked(mark) == []
    from flower_fedavg import task

    import audit

    transcript = fedleak.load_transcript(app.parent / "recording")
    assert [len(r.received) for r in transcript.rounds] == [2]
    finding = fedleak.attack(transcript, "dlm_plus", model=task.Net, steps=60, restarts=1, device="cpu")
    assert audit.judge(task, finding, task.Net().state_dict())["recovered"] >= 1
