"""The client: digest the consensus, revisit its own data, predict on the public pictures. Its weights stay home."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from torch import nn

from fedleak.integrations.flower import read_request, reply_predictions
from flower_fedmd.task import digest, network, private, public, revisit


def own_model(context: Context) -> nn.Module:
    """The client's network as it stands: as it starts, or as it was when it last predicted."""
    partition = int(context.node_config["partition-id"])
    torch.manual_seed(partition)
    net = network(partition)
    if "model" in context.state:
        net.load_state_dict(context.state["model"].to_torch_state_dict())
    return net


app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    net, pictures, asked = own_model(context), public(), read_request(message)
    if asked.consensus is not None:
        digest(net, pictures[asked.consensus.index], asked.consensus.values, asked.consensus.scale)
    own, labels = private(int(context.node_config["partition-id"]))
    revisit(net, own, labels)
    context.state["model"] = ArrayRecord(net.state_dict())
    with torch.no_grad():
        values = net(pictures[asked.index])
    if message.content["config"]["scale"] == "probabilities":
        values = values.softmax(dim=-1)
    return reply_predictions(message, values, samples=len(own))
