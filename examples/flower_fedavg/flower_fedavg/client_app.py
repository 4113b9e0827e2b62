"""The client: trains on its own photographs and sends the weights."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_fedavg.task import Net, load_data, train

app = ClientApp()


@app.train()
def train_client(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    (images, names), _ = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    config = message.content["config"]
    loss = train(net, images, names, config["local-epochs"], config["learning-rate"])
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(images)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
