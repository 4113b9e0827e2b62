"""The server: averages predictions, and records what it is sent."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedleak.integrations.flower import exchange
from fedleak.types import PublicSet
from flower_fedmd.task import PEOPLE, public

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    exchange(
        grid,
        public=PublicSet(public()),
        classes=PEOPLE,
        rounds=int(context.run_config["num-server-rounds"]),
        protocol=context.run_config["protocol"],
        examples=20,
        out="recording",
    )
