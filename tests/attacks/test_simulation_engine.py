"""The simulation's slopes are those of autograd through the client's own training, whichever way they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedleak.attacks.simulation.unroll import Simulation
from fedleak.errors import RefusedError, ShapeError
from fedleak.learning.functional import Network, loss_named
from fedleak.learning.sgd import local_sgd
from fedleak.models import build_model
from fedleak.types import ModelSpec, Named

LR, CLASSES = 0.05, 5
LOSS = loss_named("cross_entropy")


def small(name: str, shape: tuple[int, ...] = (2, 9, 8), **arguments: Any) -> Network:
    arguments = {"widths": [3, 4], "hidden": 6} if name.startswith("cnn") else arguments
    return Network(build_model(ModelSpec(name, arguments), shape, CLASSES, torch.Generator().manual_seed(0)).double())


def problem(
    network: Network, victims: int, steps: int, images: int, shape: tuple[int, ...] = (2, 9, 8)
) -> tuple[Tensor, Tensor, list[Tensor]]:
    rng = torch.Generator().manual_seed(1)
    inputs = torch.randn(victims, steps, images, *shape, generator=rng, dtype=torch.float64)
    labels = torch.randint(0, CLASSES, (victims, steps, images), generator=rng)
    targets = [
        torch.randn(victims, *value.shape, generator=rng, dtype=torch.float64) for value in network.initial().values()
    ]
    return inputs, labels, targets


def squared(update: dict[str, Tensor], given: Sequence[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    apart = {name: value - target for (name, value), target in zip(update.items(), given, strict=True)}
    value = torch.stack([one.square().flatten(1).sum(dim=1) for one in apart.values()]).sum(dim=0)
    return value, {name: 2 * one for name, one in apart.items()}


def by_autograd(
    network: Network, weights: Named, inputs: Tensor, labels: Tensor, targets: Sequence[Tensor], mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One victim at a time, through local_sgd, which the clients run."""
    values, slopes = [], []
    for v in range(len(inputs)):
        own = inputs[v].clone().requires_grad_()
        steps, images = labels.shape[1:]
        batches = [torch.arange(images) + u * images for u in range(steps)]
        if mask is not None:
            batches = [batch[mask[v, u] != 0] for u, batch in enumerate(batches)]
        batches = [batch for batch in batches if len(batch)]
        end = local_sgd(
            network, LOSS, weights, own.flatten(0, 1), labels[v].flatten(), batches, LR, differentiable=True
        )
        apart = [(weights[n] - end[n]) / LR - t[v] for n, t in zip(weights, targets, strict=True)]
        value = torch.stack([one.square().sum() for one in apart]).sum()
        values.append(value.detach())
        slopes.append(torch.autograd.grad(value, own)[0])
    return torch.stack(values), torch.stack(slopes)


def check(network: Network, simulation: Simulation, *given: Any, mask: Tensor | None = None) -> None:
    inputs, labels, targets = given
    value, slope = simulation(inputs, labels, mask, squared, targets)
    expected_value, expected = by_autograd(network, network.initial(), inputs, labels, targets, mask)
    torch.testing.assert_close(value, expected_value, rtol=1e-12, atol=0)
    torch.testing.assert_close(slope, expected, rtol=1e-9, atol=1e-12 * float(expected.abs().max()))


class PerImage(nn.Module):
    """Something that torch.func cannot map: it looks at a number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(2 * 9 * 8, 4), nn.Sigmoid(), nn.Linear(4, CLASSES))

    def forward(self, inputs: Tensor) -> Tensor:
        scale = 2.0 if float(inputs.detach().sum()) > 1e6 else 1.0
        outputs: Tensor = self.inner(inputs) * scale
        return outputs


def lone() -> Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Network(PerImage().double())


NETWORKS = {
    "written out": lambda: small("cnn_femnist"),
    "mapped": lambda: small("lenet", channels=3),
    "one by one": lone,
}


@pytest.mark.parametrize("checkpoint", ["step", "epoch"])
@pytest.mark.parametrize("engine", list(NETWORKS))
def test_the_slope_is_autograds_through_the_clients_training(engine: str, checkpoint: Any) -> None:
    network = NETWORKS[engine]()
    simulation = Simulation(network, LOSS, network.initial(), lr=LR, steps_per_epoch=2, checkpoint=checkpoint)
    check(network, simulation, *problem(network, victims=2, steps=6, images=3))
    assert simulation.engine == engine
    assert bool(simulation.fallback) == (engine == "one by one")


@pytest.mark.parametrize("checkpoint", ["step", "epoch"])
@pytest.mark.parametrize("engine", list(NETWORKS))
def test_uneven_batches_end_with_their_epoch(engine: str, checkpoint: Any) -> None:
    # N = 5, m = 3: batches of 3 and 2 in each of two epochs; the second client has N = 3, one batch an epoch.
    mask = torch.ones(2, 4, 3)
    mask[:, 1::2, 2] = 0
    mask[1, 1::2] = 0
    network = NETWORKS[engine]()
    simulation = Simulation(network, LOSS, network.initial(), lr=LR, steps_per_epoch=2, checkpoint=checkpoint)
    inputs, labels, targets = problem(network, victims=2, steps=4, images=3)
    check(network, simulation, inputs, labels, targets, mask=mask)
    _, slope = simulation(inputs, labels, mask, squared, targets)
    assert not slope[mask == 0].any()
    assert slope[mask == 1].flatten(1).any(dim=1).all()
    # what lies where nothing is must not matter
    other = torch.where(mask[..., None, None, None] == 0, torch.full_like(inputs, 7.0), inputs)
    torch.testing.assert_close(simulation(other, labels, mask, squared, targets)[1], slope, rtol=0, atol=0)


@pytest.mark.parametrize("engine", list(NETWORKS))
def test_one_step_on_one_image_is_a_gradients_inversion(engine: str) -> None:
    network = NETWORKS[engine]()
    simulation = Simulation(network, LOSS, network.initial(), lr=LR, steps_per_epoch=1)
    check(network, simulation, *problem(network, victims=1, steps=1, images=1))


@pytest.mark.parametrize(
    ("shape", "blocks"), [((1, 8, 8), 1), ((1, 8, 8), 3), ((3, 11, 9), 1), ((3, 11, 9), 3), ((1, 7, 12), 2)]
)
def test_written_out_steps_take_any_size_and_number_of_blocks(shape: tuple[int, ...], blocks: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        channels, layers = shape[0], []
        for wide in (3, 4, 2)[:blocks]:
            layers += [nn.Conv2d(channels, wide, 3, padding="same"), nn.ReLU(), nn.AvgPool2d(2)]
            channels = wide
        places = (shape[1] >> blocks) * (shape[2] >> blocks)
        hidden: list[nn.Module] = [nn.Flatten(), nn.Linear(channels * places, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU()]
        network = Network(nn.Sequential(*layers, *hidden, nn.Linear(3, CLASSES)).double())
    simulation = Simulation(network, LOSS, network.initial(), lr=LR, steps_per_epoch=3)
    check(network, simulation, *problem(network, 2, 3, 2, shape))
    assert simulation.engine == "written out"


@pytest.mark.parametrize(
    "change",
    [
        lambda layers: layers.__setitem__(0, nn.Conv2d(2, 3, 3, padding=1, bias=False)),
        lambda layers: layers.__setitem__(0, nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular")),
        lambda layers: layers.__setitem__(0, nn.Conv2d(2, 3, 5, padding=2)),
        lambda layers: layers.__setitem__(1, nn.Sigmoid()),
        lambda layers: layers.__setitem__(2, nn.MaxPool2d(2)),
        lambda layers: layers.__setitem__(2, nn.AvgPool2d(2, ceil_mode=False, divisor_override=3)),
        lambda layers: layers.append(nn.ReLU()),
        lambda layers: layers.insert(5, nn.Tanh()),
        lambda layers: layers[4].register_forward_hook(lambda _module, _given, made: 2 * made),
    ],
    ids=["no bias", "circular", "5x5", "sigmoid", "max", "divisor", "relu last", "tanh", "hook"],
)
def test_a_network_that_is_only_similar_is_left_to_autograd(change: Any) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(3 * 16, CLASSES)]
        change(layers)
        network = Network(nn.Sequential(*layers).double())
    simulation = Simulation(network, LOSS, network.initial(), lr=LR, steps_per_epoch=2)
    check(network, simulation, *problem(network, 1, 2, 2, (2, 9, 8)))
    assert simulation.engine != "written out"


def test_another_loss_is_left_to_autograd() -> None:
    network = small("cnn_femnist")
    simulation = Simulation(network, lambda o, t: 2 * LOSS(o, t), network.initial(), lr=LR, steps_per_epoch=2)
    inputs, labels, targets = problem(network, 1, 2, 2)
    simulation(inputs, labels, None, squared, targets)
    assert simulation.engine == "mapped"


def test_a_module_that_looks_at_the_batch_as_a_whole_is_simulated_one_by_one() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Sigmoid(), nn.Flatten(), nn.Linear(3 * 42, CLASSES)]
        network = Network(nn.Sequential(*layers).double())
    simulation = Simulation(network, LOSS, network.initial(), lr=LR, steps_per_epoch=2)
    check(network, simulation, *problem(network, 2, 2, 3))
    assert simulation.engine == "one by one"
    assert "cannot be mapped" in simulation.fallback


def test_the_slope_agrees_with_finite_differences() -> None:
    network = small("lenet", channels=3)  # smooth: a step across a ReLU's edge would spoil the difference
    simulation = Simulation(network, LOSS, network.initial(), lr=LR, steps_per_epoch=2)
    inputs, labels, targets = problem(network, 1, 4, 2)
    direction = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    _, slope = simulation(inputs, labels, None, squared, targets)
    ahead, behind = (
        simulation(inputs + sign * 1e-5 * direction, labels, None, squared, targets)[0] for sign in (1, -1)
    )
    assert float((ahead - behind) / 2e-5) == pytest.approx(float((slope * direction).sum()), rel=1e-6)


def test_momentum_and_steps_that_are_none_are_refused() -> None:
    network = small("lenet", channels=2)
    with pytest.raises(RefusedError, match=r"momentum=0\.9.*plain SGD"):
        Simulation(network, LOSS, network.initial(), lr=LR, steps_per_epoch=2, momentum=0.9)
    with pytest.raises(RefusedError, match="lr=0"):
        Simulation(network, LOSS, network.initial(), lr=0.0, steps_per_epoch=2)
    with pytest.raises(RefusedError, match="steps_per_epoch=0"):
        Simulation(network, LOSS, network.initial(), lr=LR, steps_per_epoch=0)


def test_shapes_that_do_not_fit_are_refused_and_never_broadcast() -> None:
    network = small("lenet", channels=2)
    simulation = Simulation(network, LOSS, network.initial(), lr=LR, steps_per_epoch=2)
    inputs, labels, targets = problem(network, 2, 2, 2)
    with pytest.raises(ShapeError, match="inputs of shape"):
        simulation(inputs[0], labels, None, squared, targets)
    with pytest.raises(ShapeError, match="labels of shape"):
        simulation(inputs, labels[:, :1], None, squared, targets)
    with pytest.raises(ShapeError, match="mask of shape"):
        simulation(inputs, labels, torch.ones(2, 2, 1), squared, targets)
    with pytest.raises(ShapeError, match="given for 1 victims"):
        simulation(inputs, labels, None, squared, [one[:1] for one in targets])


def test_a_module_that_cannot_be_differentiated_twice_is_refused() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.exp()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, slope: Tensor) -> Tensor:
            return slope

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2 * 9 * 8, CLASSES)

        def forward(self, inputs: Tensor) -> Tensor:
            made: Tensor = Once.apply(self.head(inputs.flatten(1)))
            return made

    network = Network(Module().double())
    simulation = Simulation(network, LOSS, network.initial(), lr=LR, steps_per_epoch=2)
    with pytest.raises(RefusedError, match="twice differentiable"):
        simulation(*problem(network, 1, 2, 2)[:2], None, squared, problem(network, 1, 2, 2)[2])
