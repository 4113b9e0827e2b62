"""A specification that runs in a second or two: tiny faces, a tiny network, a few steps."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "seeds": [0],
    "data": {"name": "orl", "size": 8, "clients": 3},
    "model": {"name": "mlp", "hidden": 6},
    "protocol": {"name": "fedavg", "rounds": 2, "epochs": 2, "batch_size": 30, "lr": 0.1, "examples": 1},
    "defenses": [{"name": "none"}, {"name": "gaussian", "sigma": 0.5}],
    "attacks": [{"name": "dlm_plus", "steps": 3, "restarts": 1}, {"name": "dlg", "steps": 3, "restarts": 1}],
}
