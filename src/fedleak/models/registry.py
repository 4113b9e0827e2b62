"""Every model fedleak knows by name."""

from __future__ import annotations

from fedleak.models.small import CNN, MLP, LeNet

__all__ = ["MODELS"]

MODELS: dict[str, type] = {
    "lenet": LeNet,
    "mlp": MLP,
    "cnn": CNN,
}
