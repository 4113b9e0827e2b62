"""Flower: record what a federation's server sees, defend what its clients send, replay a recording.

    strategy = record(FedAvg(), out="recording", model=Net)     # in the ServerApp
    app = ClientApp(mods=[defend(Clip(norm=1), Gaussian(sigma=0.01))])
    train_defended(net, images, labels, epochs=1, lr=0.1)       # where a defense acts on gradients (dp_sgd, prune)
    FedMedian().start(replay("recording"), ...)                 # no clients, no network

Importing this package does not import flwr.
"""

from __future__ import annotations

from fedleak.integrations.flower.defending import defend
from fedleak.integrations.flower.deployment import Deployment, Node
from fedleak.integrations.flower.logits import exchange, read_request, reply_predictions
from fedleak.integrations.flower.recording import record
from fedleak.integrations.flower.replaying import first_arrays, replay
from fedleak.integrations.flower.training import train_defended

__all__ = [
    "Deployment",
    "Node",
    "defend",
    "exchange",
    "first_arrays",
    "read_request",
    "record",
    "replay",
    "reply_predictions",
    "train_defended",
]
