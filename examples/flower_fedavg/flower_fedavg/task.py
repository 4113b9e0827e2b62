"""The network, the data and the training: what every Flower app has in its task.py."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedleak.data import DataSpec, data_root, read
from fedleak.data.pixels import as_pixels, fitted

PEOPLE, SIZE, MEAN, STD = 4, 16, 0.5, 0.2


class Net(nn.Module):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(8, 16, 5, stride=2, padding=2)
        self.fc1 = nn.Linear(16 * (SIZE // 4) ** 2, 64)
        self.fc2 = nn.Linear(64, PEOPLE)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.conv1(x))
        x = torch.tanh(self.conv2(x))
        x = torch.tanh(self.fc1(torch.flatten(x, 1)))
        return self.fc2(x)


def load_data(partition_id: int, num_partitions: int = 2) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(images, names) of one client, one photograph of each person, and the common test set. Pixels in [0, 1]."""
    faces = read(DataSpec(name="orl"), data_root()).train
    images = as_pixels(fitted(faces.inputs, (1, SIZE, SIZE)))
    of = [torch.nonzero(faces.labels == person).flatten() for person in range(PEOPLE)]
    mine = torch.stack([photos[partition_id] for photos in of])
    test = torch.cat([photos[num_partitions:] for photos in of])
    return (images[mine], faces.labels[mine]), (images[test], faces.labels[test])


def train(net: nn.Module, images: Tensor, names: Tensor, epochs: int, lr: float) -> float:
    """Train on the client's own photographs; the last loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    loss = torch.zeros(())
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = F.cross_entropy(net((images - MEAN) / STD), names)
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def accuracy(net: nn.Module, images: Tensor, names: Tensor) -> float:
    net.eval()
    with torch.no_grad():
        return float((net((images - MEAN) / STD).argmax(1) == names).float().mean())
