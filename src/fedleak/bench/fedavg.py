"""`fedleak bench fedavg`: one step of the attack on FedAvg, many clients at once, against one client at a time.

A step is what the attack repeats hundreds of times: train on the dummies for U unrolled steps, compare the update with
the client's, and take the distance's slope back to the dummies. What stands around it (priors, Adam) is the same for
all and costs nothing beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedleak.attacks.simulation.unroll import Precision, Simulation
from fedleak.bench.fedavg_rivals import Dummies, eager_client, jax_client
from fedleak.bench.measure import Result, floor_seconds, interleaved, peak_memory
from fedleak.learning.functional import Network, loss_named
from fedleak.models import build_model
from fedleak.seeding import Seeds
from fedleak.types import ModelSpec

__all__ = ["bench_fedavg"]

NETS = {"femnist": ("cnn_femnist", (1, 28, 28), 62), "cifar100": ("cnn_cifar100", (3, 32, 32), 100)}
LR = 0.004
LOSS = loss_named("cross_entropy")


@dataclass(frozen=True)
class Sizes:
    """How much is measured: clients and rivals' clients, epochs, images per client and batch; growth tables."""

    clients: int
    rivals: int
    epochs: int
    images: int
    batch: int
    more_clients: tuple[int, ...]
    more_epochs: tuple[int, ...]
    others: tuple[tuple[str, Precision], ...]
    """Other networks and precisions, at the same size."""


SIZES = {
    "cpu": Sizes(4, 4, 5, 20, 5, (2, 8), (1, 10), ()),
    "cuda": Sizes(
        100,
        4,
        10,
        50,
        5,
        (1, 4, 16, 50, 200),
        (1, 5, 20, 50),
        (("femnist", "tf32"), ("cifar100", "float32"), ("cifar100", "tf32")),
    ),
}


@dataclass(frozen=True, eq=False)
class _Problem:
    module: nn.Module
    dummies: Dummies
    per_epoch: int

    def simulation(self, precision: Precision = "float32") -> Simulation:
        network, weights = Network(self.module), self.dummies.weights
        return Simulation(network, LOSS, weights, lr=LR, steps_per_epoch=self.per_epoch, precision=precision)

    def attack(self, engine: Simulation) -> Callable[[int], int]:
        """Our way: a step for that many clients, of which it says how many they were."""
        given = self.dummies

        def run(clients: int) -> int:
            targets = [one[:clients] for one in given.targets.values()]
            engine(given.inputs[:clients], given.labels[:clients], None, _squared, targets)
            return clients

        return run

    def eager(self, clients: int) -> int:
        for client in range(clients):
            eager_client(self.module, LOSS, LR, self.dummies, client)
        return clients

    def operations(self) -> float:
        """What a step of one client takes with plain convolutions: nine times the forward pass of all its images.

        Three for training (forward, and back by inputs and weights), and on the way back two for the derivative of
        each of these three.
        """
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            self.module(self.dummies.inputs[0, 0])
        return 9.0 * float(counter.get_total_flops()) * self.dummies.inputs.shape[1]


def _squared(update: dict[str, Tensor], given: Sequence[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    apart = {name: value - target for (name, value), target in zip(update.items(), given, strict=True)}
    values = torch.stack([one.square().flatten(1).sum(dim=1) for one in apart.values()]).sum(dim=0)
    return values, {name: one.mul_(2) for name, one in apart.items()}


def _problem(net: str, clients: int, epochs: int, images: int, batch: int, device: str) -> _Problem:
    """Noise for pictures and targets: speed does not depend on what is in them."""
    name, shape, classes = NETS[net]
    rng = Seeds(0).generator("bench", net)
    module = build_model(ModelSpec(name), shape, classes, rng).to(device)
    per_epoch = images // batch
    inputs = torch.randn(clients, epochs * per_epoch, batch, *shape, generator=rng).to(device)
    labels = torch.randint(0, classes, inputs.shape[:3], generator=rng).to(device)
    weights = Network(module).initial()
    # One target for all: a copy per client would be most of what is made here.
    drawn = {key: torch.randn(value.shape, generator=rng).to(device) for key, value in weights.items()}
    targets = {key: value.expand(clients, *value.shape) for key, value in drawn.items()}
    return _Problem(module, Dummies(inputs, labels, weights, targets), per_epoch)


def bench_fedavg(device: str) -> Result:
    """Seconds per client and attack step; ratios at many clients (vs_eager, vs_jax) and at one (vs_eager_1)."""
    sizes = SIZES[device]
    seconds, peak, floor, engine = _side_by_side(sizes, device)
    ours, jax = seconds[f"ours_{sizes.clients}"], seconds.get(f"jax_{sizes.rivals}")
    ratios = {
        "vs_eager": seconds[f"eager_{sizes.rivals}"] / ours,
        "vs_eager_1": seconds["eager_1"] / seconds["ours_1"],
        "vs_jax": None if jax is None else jax / ours,
    }
    return Result(
        name="fedavg",
        device=torch.cuda.get_device_name() if device == "cuda" else "cpu",
        ratios=ratios,
        seconds={**seconds, **_others(sizes, device), **_growth(sizes, device)},
        peak_memory=peak,
        floor_seconds=floor,
        conditions={**_conditions(sizes), **engine},
    )


def _side_by_side(sizes: Sizes, device: str) -> tuple[dict[str, float], int, float, dict[str, str]]:
    """Seconds of all contenders, our peak memory, the arithmetic floor, and how our steps were computed."""
    problem = _problem("femnist", sizes.clients, sizes.epochs, sizes.images, sizes.batch, device)
    engine = problem.simulation()
    many, one = problem.attack(engine), problem.attack(problem.simulation())
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    many(sizes.clients)
    peak = peak_memory(device)
    contenders: dict[str, Callable[[], int]] = {
        f"ours_{sizes.clients}": lambda: many(sizes.clients),
        f"eager_{sizes.rivals}": lambda: problem.eager(sizes.rivals),
        "ours_1": lambda: one(1),
        "eager_1": lambda: problem.eager(1),
    }
    compiled = jax_client(LR, problem.dummies, sizes.rivals)
    if compiled is not None:
        contenders[f"jax_{sizes.rivals}"] = lambda: _each(compiled, sizes.rivals)
    seconds = interleaved(contenders, repeats=3, device=device)
    said = {name: getattr(engine, name) for name in ("engine", "fallback", "unfused", "uncaptured")}
    return seconds, peak, floor_seconds(problem.operations(), device), {name: one for name, one in said.items() if one}


def _conditions(sizes: Sizes) -> dict[str, Any]:
    return {
        "model": "cnn_femnist",
        "clients": sizes.clients,
        "epochs": sizes.epochs,
        "images": sizes.images,
        "batch_size": sizes.batch,
        "unrolled_steps": sizes.epochs * sizes.images // sizes.batch,
        "precision": "float32",
        "threads": torch.get_num_threads(),
        "seconds": "per client and attack step",
        "floor": "nine forward passes with plain convolutions at the speed of a large float32 matrix product",
    }


def _each(run: Callable[[int], Any], clients: int) -> int:
    for client in range(clients):
        run(client)
    return clients


def _others(sizes: Sizes, device: str) -> dict[str, float]:
    """The other networks and precisions, at the same size."""
    found: dict[str, float] = {}
    for net, precision in sizes.others:
        problem = _problem(net, sizes.clients, sizes.epochs, sizes.images, sizes.batch, device)
        run = problem.attack(problem.simulation(precision))
        name = f"{net}_{precision}_{sizes.clients}"
        found |= interleaved({name: lambda run=run: run(sizes.clients)}, 2, device)  # type: ignore[misc]
    return found


def _growth(sizes: Sizes, device: str) -> dict[str, float]:
    """Seconds per client and step as clients and unrolled steps grow, one at a time."""
    found: dict[str, float] = {}
    for clients in sizes.more_clients:
        problem = _problem("femnist", clients, sizes.epochs, sizes.images, sizes.batch, device)
        run = problem.attack(problem.simulation())
        name = f"clients_{clients}"
        found |= interleaved({name: lambda run=run, n=clients: run(n)}, 2, device)  # type: ignore[misc]
    for epochs in sizes.more_epochs:
        problem = _problem("femnist", sizes.clients, epochs, sizes.images, sizes.batch, device)
        run = problem.attack(problem.simulation())
        name = f"unrolled_steps_{epochs * sizes.images // sizes.batch}"
        found |= interleaved({name: lambda run=run: run(sizes.clients)}, 2, device)  # type: ignore[misc]
    return found
