"""Simulated federations: each run leaves a transcript (what the server saw) and, apart from it, the truth."""

from __future__ import annotations

from fedleak.federation.base import FederationProtocol, Known, Problem, Settings
from fedleak.federation.fedavg import FedAvg
from fedleak.federation.fedsgd import FedSGD
from fedleak.federation.logits import DSFL, FedGEMS, FedMD

__all__ = [
    "DSFL",
    "PROTOCOLS",
    "FedAvg",
    "FedGEMS",
    "FedMD",
    "FedSGD",
    "FederationProtocol",
    "Known",
    "Problem",
    "Settings",
]

PROTOCOLS: dict[str, type] = {
    "fedsgd": FedSGD,
    "fedavg": FedAvg,
    "fedmd": FedMD,
    "fedgems": FedGEMS,
    "dsfl": DSFL,
}
