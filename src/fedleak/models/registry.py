"""Every model fedleak knows by name."""

from __future__ import annotations

from fedleak.models.fedavg_paper import CNNCIFAR100, CNNFEMNIST
from fedleak.models.logit_papers import PLICNN, AdaMSACNN, AlexNet
from fedleak.models.small import CNN, MLP, LeNet

__all__ = ["MODELS"]

MODELS: dict[str, type] = {
    "lenet": LeNet,
    "mlp": MLP,
    "cnn": CNN,
    "cnn_femnist": CNNFEMNIST,
    "cnn_cifar100": CNNCIFAR100,
    "pli_cnn": PLICNN,
    "adamsa_cnn": AdaMSACNN,
    "alexnet": AlexNet,
}
