"""`fedleak bench federation`: the clients of a logit federation as one stack against one after the other.

Clients with the CNN(128, 256) of adamsa.txt on 28x28 pictures, in the batches of its Close-world: 10 private, 128
public. A piece of work is one step of one client, averaged over a round: private epochs, then one over the public set.
The rival is what one writes first: a module, torch.optim.Adam as it comes, batches gathered on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fedleak.bench.measure import Result, floor_seconds, interleaved, peak_memory
from fedleak.learning.batches import schedule
from fedleak.learning.functional import cross_entropy
from fedleak.learning.stacked import Stack
from fedleak.models import build_model
from fedleak.seeding import Seeds
from fedleak.types import ModelSpec

__all__ = ["bench_federation"]

SHAPE, CLASSES, WIDTHS = (1, 28, 28), 10, (128, 256)
PRIVATE, PRIVATE_BATCH, PUBLIC_BATCH = 30, 10, 128
CLIENTS, EPOCHS, PUBLIC = {"cpu": 4, "cuda": 10}, {"cpu": 1, "cuda": 5}, {"cpu": 64, "cuda": 5120}
"""How many clients, private epochs and public examples: on a CPU few, or the benchmark would take minutes."""


@dataclass(frozen=True, eq=False)
class _Work:
    """A round of some clients: private epochs on labels, one public epoch on soft targets."""

    modules: Sequence[nn.Module]
    private: Sequence[tuple[Tensor, Tensor]]
    public: Tensor
    soft: Tensor
    own: Sequence[Sequence[Tensor]]
    shared: Sequence[Sequence[Tensor]]

    def steps(self) -> int:
        return sum(len(one) for one in (*self.own, *self.shared))

    def few(self, count: int) -> _Work:
        return _Work(
            self.modules[:count],
            self.private[:count],
            self.public,
            self.soft,
            self.own[:count],
            self.shared[:count],
        )


def _work(device: str) -> _Work:
    """Random pictures: speed does not depend on what is in them."""
    rng, clients = Seeds(0).generator("bench"), CLIENTS[device]
    public = torch.rand(PUBLIC[device], *SHAPE, generator=rng)
    soft = torch.softmax(torch.randn(len(public), CLASSES, generator=rng), dim=-1)
    private = [
        (torch.rand(PRIVATE, *SHAPE, generator=rng), torch.randint(0, CLASSES, (PRIVATE,), generator=rng))
        for _ in range(clients)
    ]

    def order(count: int, batch: int, epochs: int) -> list[list[Tensor]]:
        return [
            [index.to(device) for epoch in schedule(count, batch, epochs, rng) for index in epoch]
            for _ in range(clients)
        ]

    spec = ModelSpec("adamsa_cnn", {"widths": WIDTHS})
    return _Work(
        [build_model(spec, SHAPE, CLASSES, rng).to(device) for _ in range(clients)],
        [(x.to(device), y.to(device)) for x, y in private],
        public.to(device),
        soft.to(device),
        order(PRIVATE, PRIVATE_BATCH, EPOCHS[device]),
        order(len(public), PUBLIC_BATCH, 1),
    )


def _one_after_the_other(work: _Work) -> Callable[[], int]:
    optimisers = [torch.optim.Adam(module.parameters(), lr=1e-3) for module in work.modules]

    def run() -> int:
        for k, (module, optimiser) in enumerate(zip(work.modules, optimisers, strict=True)):
            inputs, labels = work.private[k]
            for batch in work.own[k]:
                optimiser.zero_grad()
                F.cross_entropy(module(inputs[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            for batch in work.shared[k]:
                optimiser.zero_grad()
                F.cross_entropy(module(work.public[batch]), work.soft[batch]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        return work.steps()

    return run


def _together(work: _Work, device: str) -> Callable[[], int]:
    stack = Stack(work.modules, lr=1e-3, device=device)

    def run() -> int:
        stack.fit(cross_entropy, [x for x, _ in work.private], [[y for _, y in work.private]], work.own)
        stack.fit(cross_entropy, work.public, [work.soft], work.shared)
        return work.steps()

    return run


def bench_federation(device: str) -> Result:
    """Seconds per step of one client, and ratios at many clients (vs_eager) and at one (vs_eager_1)."""
    work, clients = _work(device), CLIENTS[device]
    before = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)  # as the runner does: one thread a trial
    try:
        seconds = interleaved(
            {
                f"stack_{clients}": _together(work, device),
                f"one_by_one_{clients}": _one_after_the_other(work),
                "stack_1": _together(work.few(1), device),
                "one_by_one_1": _one_after_the_other(work.few(1)),
            },
            repeats=3,
            device=device,
        )
        floor = _floor(work, device)
    finally:
        torch.set_num_threads(before)
    return Result(
        name="federation",
        device=torch.cuda.get_device_name() if device == "cuda" else "cpu",
        ratios={
            "vs_eager": seconds[f"one_by_one_{clients}"] / seconds[f"stack_{clients}"],
            "vs_eager_1": seconds["one_by_one_1"] / seconds["stack_1"],
            "vs_jax": None,
        },
        seconds=seconds,
        peak_memory=peak_memory(device),
        floor_seconds=floor,
        conditions={
            "clients": clients,
            "model": f"adamsa_cnn {WIDTHS} {SHAPE[1]}x{SHAPE[2]}",
            "private": f"{EPOCHS[device]} epochs of {PRIVATE} in batches of {PRIVATE_BATCH}",
            "public": f"1 epoch of {PUBLIC[device]} in batches of {PUBLIC_BATCH}",
            "precision": "convolutions in tf32" if _rounds(device) else "float32",
            "mode": Stack(work.modules[:2], lr=1e-3, device=device).mode,
            "floor": "three forward passes with plain convolutions at the speed of a large matrix product; Winograd's "
            "need fewer products and can be below it",
        },
    )


def _rounds(device: str) -> bool:
    """Both contenders leave it to torch, which rounds the factors of convolutions on a GPU unless told not to."""
    return device == "cuda" and torch.backends.cudnn.allow_tf32


def _floor(work: _Work, device: str) -> float:
    """At the speed of a matrix product in the precision of the convolutions, which are nearly all of the work. Where
    these are Winograd's (3x3 on a CPU) they compute less, and a step can take less than this."""
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, _rounds(device)
    try:
        return floor_seconds(_operations(work), device)
    finally:
        matmul.allow_tf32 = before


def _operations(work: _Work) -> float:
    """What an average step must compute: three times the forward pass of its batch."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        work.modules[0](work.public[:1])
    batches = [len(batch) for one in (*work.own, *work.shared) for batch in one]
    return 3.0 * float(counter.get_total_flops()) * sum(batches) / len(batches)
