"""Your own network, your own training loop, no framework: record it, attack it, and ask how sure the attack is.

python examples/own_model.py

A small residual network with BatchNorm and dropout, whose first layer is frozen, is trained by two clients on one
photograph each. The recording is attacked twice: as it is, and with noise on what the clients send. Nobody tells the
attack the truth; what it believes is compared with it only at the end.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedleak
from fedleak.data import DataSpec, data_root, read
from fedleak.data.pixels import as_pixels, fitted
from fedleak.defenses import Context, Gaussian
from fedleak.integrations.confidence import confidence
from fedleak.integrations.own_models import prepare
from fedleak.seeding import Seeds
from fedleak.types import Message, ModelSpec, Normalisation, Reconstruction, Round, Setup, Transcript, Weights

PEOPLE, SIZE = 4, 16
NORMAL = Normalisation((0.5,), (0.2,))


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.skip = nn.Conv2d(before, after, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(torch.tanh(self.norm1(self.conv1(x)))))
        return torch.tanh(inner + self.skip(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2))
        self.head = nn.Linear(16 * (SIZE // 2) ** 2, PEOPLE)
        self.stem.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(torch.tanh(self.stem(x))).flatten(1)
        return self.head(F.dropout(x, 0.1, self.training))


def photograph(person: int, number: int) -> Tensor:
    faces = read(DataSpec(name="orl"), data_root()).train
    at = torch.nonzero(faces.labels == person).flatten()[number]
    return as_pixels(fitted(faces.inputs[at : at + 1], (1, SIZE, SIZE)))


def client(state: dict[str, Tensor], person: int) -> Weights:
    """One client's round: load, one step, send the state_dict."""
    net = ResNet()
    net.load_state_dict(state)
    F.cross_entropy(net(NORMAL.apply(photograph(person, 0))), torch.tensor([person])).backward()
    torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1).step()
    return weights(net.state_dict())


def weights(state: dict[str, Tensor]) -> Weights:
    trained = {name for name, _ in ResNet().named_parameters()}
    return Weights(
        {name: value.detach().clone() for name, value in state.items() if name in trained},
        {name: value.detach().clone() for name, value in state.items() if name not in trained},
    )


def record(folder: Path, defense: Gaussian | None) -> Transcript:
    """What the server sees, written down as it goes."""
    torch.manual_seed(0)
    state = ResNet().state_dict()
    setup = Setup(ModelSpec("own_model:ResNet"), (1, SIZE, SIZE), PEOPLE, normalisation=NORMAL)
    writer = fedleak.TranscriptWriter(folder, setup)
    broadcast, messages = weights(state), []
    for person in (0, 1):
        sent = client(state, person)
        if defense is not None:
            context = Context(stage="message", broadcast=broadcast)
            sent = defense.apply(sent, context, Seeds(0).generator("client", person))
        messages.append(Message(f"hospital-{person}", sent, {"samples": 1}))
    writer.append(Round(1, broadcast, tuple(messages)))
    return fedleak.load_transcript(folder)


def attack(seen: Transcript, seed: int) -> Reconstruction:
    return fedleak.attack(seen, "dlm_plus", steps=40, restarts=1, seed=seed, device="cpu")


def main() -> None:
    torch.set_num_threads(1)
    for name, defense in (("as it is", None), ("with noise", Gaussian(sigma=0.3))):
        with tempfile.TemporaryDirectory() as folder:
            seen = prepare(record(Path(folder) / "recording", defense), ResNet)
            for person, found in enumerate(confidence(seen, attack, seeds=(0, 1))):
                error = float((found.inputs.clamp(0, 1) - photograph(person, 0)).square().mean())
                print(
                    f"{name}, {found.sender}: objective {found.objective:.2g} (noise: {found.null_objective:.2g}), "
                    f"starts agree to {found.agreement[0]:.0f} dB (noise: {found.null_agreement:.0f} dB): "
                    f"{'believed' if found.believed[0] else 'not believed'}; in truth {-10 * _log10(error):.0f} dB"
                )


def _log10(value: float) -> float:
    return float(torch.log10(torch.tensor(max(value, 1e-12))))


if __name__ == "__main__":
    main()
