"""`fedleak bench pli`: the inversion networks of all clients as one stack against a plain loop over the clients.

Both take the same steps of eq. 3 (pli.txt) on the same predictions with the same Adam: the rival is Code 2 in torch's
own layers, one client after the other, as the paper's algorithm is written down. On a GPU the size is LFW's: 1000
people, 64x64 pixels in colour, 10 clients; on a CPU it is the smoke setting's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedleak.attacks.logits.network import InversionNetwork, plain_network
from fedleak.attacks.logits.training import InversionStack, Material, Objective
from fedleak.bench.measure import Result, floor_seconds, interleaved, peak_memory
from fedleak.seeding import Seeds

__all__ = ["bench_pli"]

BATCH, LR, WEIGHT_DECAY = 8, 3e-5, 1e-4


@dataclass(frozen=True)
class _Size:
    classes: int
    picture: tuple[int, int, int]
    width: float
    clients: int
    examples: int
    steps: int


SIZES = {
    "cpu": _Size(40, (1, 32, 32), 0.0625, 4, 200, 10),
    "cuda": _Size(1000, (3, 64, 64), 1.0, 10, 6200, 60),
}
LFW_STEPS = 5 * 3 * (6200 // BATCH)
"""Steps of one client's network in the paper's LFW setting: 5 rounds, 3 epochs, 6,200 pictures."""


class _Problem:
    """Random predictions and pictures: speed does not depend on what is in them."""

    def __init__(self, size: _Size, clients: int, device: str) -> None:
        rng = Seeds(0).generator("bench", clients)
        self.size, self.device = size, device
        of = InversionNetwork(2 * size.classes, size.picture, size.width)
        made = [torch.softmax(torch.randn(size.examples, 2 * size.classes, generator=rng), 1) for _ in range(clients)]
        inputs = torch.stack(made).to(device)
        channels, height, width = size.picture
        pictures = (torch.rand(size.examples, height, width, channels, generator=rng) * 2 - 1).to(device)
        self.material = Material(inputs, pictures, torch.arange(size.examples, device=device))
        self.first = pictures.permute(0, 3, 1, 2).contiguous()
        order = torch.randint(0, size.examples, (size.steps, BATCH), generator=rng).to(device)
        self.batches = list(order)
        self.stack = InversionStack(of, range(clients), lr=LR, weight_decay=WEIGHT_DECAY, device=device)
        self.modules = [plain_network(of, seed).to(device) for seed in range(clients)]
        self.adams = [
            torch.optim.Adam(module.parameters(), lr=LR, weight_decay=WEIGHT_DECAY) for module in self.modules
        ]

    def together(self) -> int:
        """Steps of one network that were taken."""
        self.stack.fit(self.material, self.batches, Objective())
        return len(self.batches) * len(self.stack)

    def one_after_the_other(self) -> int:
        for number, (module, adam) in enumerate(zip(self.modules, self.adams, strict=True)):
            for batch in self.batches:
                self._step(module, adam, self.material.inputs[number][batch], self.first[batch])
        return len(self.batches) * len(self.modules)

    def _step(self, module: nn.Module, adam: torch.optim.Adam, inputs: Tensor, pictures: Tensor) -> None:
        adam.zero_grad()
        loss = F.mse_loss(module(inputs[:, :, None, None]), pictures)
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()


def bench_pli(device: str) -> Result:
    """Seconds for one step of one network, and ratios with all clients (vs_eager) and with one (vs_eager_1)."""
    size = SIZES[device]
    before = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)  # as the runner does: one thread a trial
    try:
        many, one = _Problem(size, size.clients, device), _Problem(size, 1, device)
        seconds = interleaved(
            {
                f"stack_{size.clients}": many.together,
                f"loop_{size.clients}": many.one_after_the_other,
                "stack_1": one.together,
                "loop_1": one.one_after_the_other,
            },
            repeats=3,
            device=device,
        )
        floor = floor_seconds(_operations(many.stack.network), device)
    finally:
        torch.set_num_threads(before)
    conditions: dict[str, Any] = {
        "classes": size.classes,
        "picture": list(size.picture),
        "width": size.width,
        "clients": size.clients,
        "batch": BATCH,
        "cuda_graph": many.stack.trouble or ("replayed" if device == "cuda" else "none on a CPU"),
    }
    if device == "cuda":
        # What the paper's LFW setting takes at these speeds, all clients together.
        for name in (f"stack_{size.clients}", f"loop_{size.clients}"):
            conditions[f"lfw_{name}_seconds"] = round(seconds[name] * size.clients * LFW_STEPS, 1)
    return Result(
        name="pli",
        device=torch.cuda.get_device_name() if device == "cuda" else "cpu",
        ratios={
            "vs_eager": seconds[f"loop_{size.clients}"] / seconds[f"stack_{size.clients}"],
            "vs_eager_1": seconds["loop_1"] / seconds["stack_1"],
            "vs_jax": None,
        },
        seconds=seconds,
        peak_memory=peak_memory(device),
        floor_seconds=floor,
        conditions=conditions,
    )


def _operations(of: InversionNetwork) -> float:
    """One step of one network: three times the products of the forward pass, two operations each."""
    down, across = of.first
    made, positions = of.inputs * of.widths[0] * down * across, down * across
    for wide, narrow in zip(of.widths, (*of.widths[1:], of.picture[0]), strict=True):
        made += positions * wide * narrow * 16
        positions *= 4
    return 3.0 * 2.0 * BATCH * made
