"""The server: averages what the clients send."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_fedavg.task import Net, accuracy, load_data

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    first = ArrayRecord(Net().state_dict())
    settings = {key: context.run_config[key] for key in ("local-epochs", "learning-rate")}

    strategy = FedAvg(fraction_evaluate=0.0)

    result = strategy.start(
        grid=grid,
        initial_arrays=first,
        num_rounds=int(context.run_config["num-server-rounds"]),
        train_config=ConfigRecord(settings),
        evaluate_fn=evaluate,
    )
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": accuracy(net, *load_data(0)[1])})
