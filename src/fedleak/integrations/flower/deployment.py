"""A real Flower deployment on this machine: one superlink and some supernodes, each its own process, over loopback.

    with Deployment("my_app", nodes=[Node({"partition-id": 0}), Node({"partition-id": 1})]) as running:
        log = running.run({"num-server-rounds": 3})

Supernodes talk gRPC to the superlink up to flwr 1.39, and HTTP from 1.40 on, which has taken gRPC out of the supernode:
the transport is the installed version's, and `Deployment.transport` says which. (`flwr run` talks HTTP from 1.37 on.)
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from fedleak.errors import RefusedError
from fedleak.integrations.flower.installed import flower_version
from fedleak.integrations.flower.processes import MARK, end_marked, free_ports, wait_for_port

__all__ = ["Deployment", "Node"]

LINK = "fedleak-local"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Nothing is reported, looked up or installed while it runs."""


@dataclass(frozen=True)
class Node:
    """One supernode: its node configuration (partition-id, ...) and what its environment has besides."""

    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


class Deployment:
    """Starts on entering, and on leaving ends every process that came out of it, whatever happened.

    The app's folder is copied first: Flower rewrites an app's pyproject.toml when its format is old. Once it
    runs, `transport` is what superlink and supernodes talk, and `port` the loopback port on which they do.
    """

    transport: Literal["grpc", "http"]
    port: int

    def __init__(self, app: Path | str, nodes: Sequence[Node], *, start_seconds: float = 120.0) -> None:
        flower_version()
        if not (Path(app) / "pyproject.toml").is_file():
            raise RefusedError(f"app={app}: has no pyproject.toml, so it is not a Flower app")
        if not nodes:
            raise RefusedError("nodes=[]: a deployment needs at least one supernode")
        self.source, self.nodes, self.start_seconds = Path(app), tuple(nodes), start_seconds
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Deployment:
        self.folder = Path(tempfile.mkdtemp(prefix="fedleak-flower-"))
        self.mark = self.folder.name
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_marked(self._started, self.mark)
        shutil.rmtree(self.folder, ignore_errors=True)

    def launch(self, config: Mapping[str, Any] | None = None) -> subprocess.Popen[str]:
        """`flwr run`, without waiting for its end. It ends with the deployment at the latest."""
        command = [_script("flwr"), "run", str(self.app), LINK, "--stream"]
        for key, given in (config or {}).items():
            command += ["--run-config", f"{key}={_toml(given)}"]
        return subprocess.Popen(
            command,
            env=self._environment(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, config: Mapping[str, Any] | None = None, *, seconds: float = 600.0) -> str:
        """`flwr run`: the server's log once the run is over. A run that fails or takes longer is a RefusedError."""
        with self.launch(config) as started:
            try:
                log, _ = started.communicate(timeout=seconds)
            except subprocess.TimeoutExpired as late:
                started.kill()
                raise RefusedError(f"flwr run: not over after {seconds:g} s\n{self.logs()}") from late
        # Older versions return 0 even when the ServerApp raised.
        if started.returncode or "Traceback (most recent call last)" in log:
            raise RefusedError(f"flwr run: failed with code {started.returncode}\n{log}\n{self.logs()}")
        return log

    def logs(self) -> str:
        """What superlink and supernodes wrote, for messages about failures."""
        parts = [f"--- {path.stem}\n{path.read_text(errors='replace')[-4000:]}" for path in self.folder.glob("*.log")]
        return "\n".join(sorted(parts))

    def _start(self) -> None:
        self.app = self.folder / "app"
        skipped = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info", "runs")
        shutil.copytree(self.source, self.app, ignore=skipped)
        (self.folder / "home").mkdir()
        link_help, node_help = self._help("flower-superlink"), self._help("flower-supernode")
        self.transport = "grpc" if "--grpc-rere" in node_help else "http"
        control, fleet, io = free_ports(3)
        if "--port" in link_help:
            # One port for everything that has moved to HTTP; the supernodes' own came last.
            link = ["--host", "127.0.0.1", "--port", str(control)]
        else:
            link = ["--control-api-address", f"127.0.0.1:{control}", "--serverappio-api-address", f"127.0.0.1:{io}"]
        if self.transport == "grpc":
            link += ["--fleet-api-address", f"127.0.0.1:{fleet}"]
        else:
            fleet = control
        self.port = fleet
        self._connect(control)
        self._spawn("superlink", ["flower-superlink", "--insecure", *link], {})
        wait_for_port(fleet, self._started, self.start_seconds, self.logs)
        for number, (node, port) in enumerate(zip(self.nodes, free_ports(len(self.nodes)), strict=True)):
            own = ["--host", "127.0.0.1", "--port", str(port)]
            if "--port" not in node_help:
                own = ["--clientappio-api-address", f"127.0.0.1:{port}"]
            settings = " ".join(f"{key}={_toml(given)}" for key, given in node.config.items())
            command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{fleet}", *own]
            self._spawn(f"supernode-{number}", [*command, "--node-config", settings], node.environment)

    def _connect(self, port: int) -> None:
        """Where `flwr run` finds the superlink: newer versions look into their home, older ones into the app."""
        section = f'address = "127.0.0.1:{port}"\ninsecure = true\n'
        (self.folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\n{section}', encoding="utf-8"
        )
        if find_spec("flwr.cli.flower_config") is None:
            with (self.app / "pyproject.toml").open("a", encoding="utf-8") as file:
                file.write(f'\n[tool.flwr.federations]\ndefault = "{LINK}"\n')
                file.write(f"\n[tool.flwr.federations.{LINK}]\n{section}")

    def _environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        # The superlink starts further programs of Flower by name: those of this environment must come first.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        own = {"PATH": path, "FLWR_HOME": str(self.folder / "home"), MARK: self.mark}
        return {**os.environ, **QUIET, **own, **(more or {})}

    def _spawn(self, name: str, command: Sequence[str], more: Mapping[str, str]) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [_script(command[0]), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self._environment(more),
                start_new_session=True,
            )
        self._started.append(process)

    def _help(self, program: str) -> str:
        answer = subprocess.run(
            [_script(program), "--help"], env=self._environment(), capture_output=True, text=True, check=False
        )
        return answer.stdout


def _script(name: str) -> str:
    """A program of Flower that belongs to the running Python."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise RefusedError(f"{name}: not found beside {Path(sys.executable).name}; pip install 'fedleak[flower]'")
    return found


def _toml(value: Any) -> str:
    """JSON's strings, numbers and booleans are TOML's."""
    return json.dumps(value)
