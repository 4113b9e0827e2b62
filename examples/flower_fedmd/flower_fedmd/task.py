"""Four people. Each client holds photographs of its own two; the public set shows four others."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedleak.data import DataSpec, data_root, read
from fedleak.data.pixels import as_pixels, fitted

PEOPLE, SIZE = 4, 16


def network(partition: int) -> nn.Module:
    """Every client has a width of its own, which FedAvg could not average."""
    width = 16 * (partition + 1)
    return nn.Sequential(nn.Flatten(), nn.Linear(SIZE * SIZE, width), nn.Tanh(), nn.Linear(width, PEOPLE))


def faces(people: range) -> tuple[Tensor, Tensor]:
    everybody = read(DataSpec(name="orl"), data_root()).train
    index = torch.nonzero(torch.isin(everybody.labels, torch.tensor(list(people)))).flatten()
    return as_pixels(fitted(everybody.inputs[index], (1, SIZE, SIZE))), everybody.labels[index]


def private(partition: int) -> tuple[Tensor, Tensor]:
    return faces(range(2 * partition, 2 * partition + 2))


def public() -> Tensor:
    return faces(range(PEOPLE, 2 * PEOPLE))[0]


def digest(net: nn.Module, pictures: Tensor, wanted: Tensor, scale: str, steps: int = 10) -> None:
    """Learn to predict what all agreed on."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        outputs = net(pictures)
        loss = F.l1_loss(outputs, wanted) if scale == "logits" else F.cross_entropy(outputs, wanted)
        loss.backward()
        optimizer.step()


def revisit(net: nn.Module, pictures: Tensor, labels: Tensor, steps: int = 20) -> None:
    """Learn from the client's own photographs."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(net(pictures), labels).backward()
        optimizer.step()
