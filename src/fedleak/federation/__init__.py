"""Simulated federations: each run leaves a transcript (what the server saw) and, apart from it, the truth."""

from __future__ import annotations

from fedleak.federation.base import FederationProtocol, Known, Problem, Settings
from fedleak.federation.fedavg import FedAvg
from fedleak.federation.fedsgd import FedSGD

__all__ = ["PROTOCOLS", "FedAvg", "FedSGD", "FederationProtocol", "Known", "Problem", "Settings"]

PROTOCOLS: dict[str, type] = {
    "fedsgd": FedSGD,
    "fedavg": FedAvg,
}
