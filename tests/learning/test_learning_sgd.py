"""Local training against hand-worked numbers, torch.optim.SGD and its own derivative."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from fedleak.errors import RefusedError
from fedleak.learning.batches import schedule
from fedleak.learning.functional import Network, cross_entropy
from fedleak.learning.sgd import batch_gradient, local_sgd, train


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()


def line(weight: float) -> Network:
    module = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        module.weight.fill_(weight)
    return Network(module)


def small(seed: int = 0, norm: bool = False) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        middle: list[nn.Module] = [nn.BatchNorm2d(3)] if norm else []
        return nn.Sequential(nn.Conv2d(1, 3, 3), *middle, nn.Tanh(), nn.Flatten(), nn.Linear(48, 4))


def data(count: int = 11, seed: int = 1) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 6, 6, generator=rng), torch.randint(0, 4, (count,), generator=rng)


def test_two_steps_by_hand() -> None:
    # L = (w x - y)^2 with x = 1, y = 0: gradient 2w. w: 1 -> 1 - 0.1 * 2 = 0.8 -> 0.8 - 0.1 * 1.6 = 0.64
    network = line(1.0)
    x, y = torch.ones(1, 1), torch.zeros(1, 1)
    after = local_sgd(network, squared, network.initial(), x, y, [torch.tensor([0])] * 2, lr=0.1)
    assert after["weight"].item() == pytest.approx(0.64)


def test_momentum_by_hand() -> None:
    # v1 = 2, w = 0.8; v2 = 0.5 * 2 + 1.6 = 2.6, w = 0.8 - 0.26 = 0.54
    network = line(1.0)
    x, y = torch.ones(1, 1), torch.zeros(1, 1)
    after = local_sgd(network, squared, network.initial(), x, y, [torch.tensor([0])] * 2, lr=0.1, momentum=0.5)
    assert after["weight"].item() == pytest.approx(0.54)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("norm", [False, True])
def test_agrees_with_torch_optim_bit_for_bit(momentum: float, norm: bool) -> None:
    module, (x, y) = small(norm=norm), data()
    batches = [b for epoch in schedule(11, 4, 3, torch.Generator().manual_seed(5)) for b in epoch]
    network = Network(copy.deepcopy(module))
    ours = train(
        network, cross_entropy, network.initial(), x, y, batches, lr=0.3, momentum=momentum, buffers=network.buffers()
    )
    optimiser = torch.optim.SGD(module.parameters(), lr=0.3, momentum=momentum)
    for batch in batches:
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
        optimiser.step()
    for name, value in module.named_parameters():
        assert torch.equal(ours.parameters[name], value), name
    for name, value in module.named_buffers():
        assert torch.equal(ours.buffers[name], value), name


def test_nothing_given_is_changed() -> None:
    network, (x, y) = Network(small(norm=True)), data()
    parameters, buffers = network.initial(), network.buffers()
    before = {name: value.clone() for name, value in {**parameters, **buffers}.items()}
    train(network, cross_entropy, parameters, x, y, [torch.arange(11)], lr=1.0, buffers=buffers)
    after = {**parameters, **buffers}
    own = {**network.initial(), **network.buffers()}
    for name, value in before.items():
        assert torch.equal(after[name], value)
        assert torch.equal(own[name], value)


def test_unrolled_training_has_the_derivative_of_its_finite_difference() -> None:
    network, (x, y) = Network(small().double()), data(4)
    x = x.double()
    batches = [torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([1, 2])]

    def final(inputs: Tensor) -> Tensor:
        out = local_sgd(network, cross_entropy, network.initial(), inputs, y, batches, 0.2, 0.5, differentiable=True)
        return sum((value.square().sum() for value in out.values()), torch.zeros((), dtype=torch.float64))

    free = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(final(free), free)
    towards = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    step = 1e-5
    difference = (final(x + step * towards) - final(x - step * towards)) / (2 * step)
    assert torch.allclose((slope * towards).sum(), difference, rtol=1e-6)


def test_by_default_nothing_is_remembered_for_derivatives() -> None:
    network, (x, y) = Network(small()), data(4)
    after = local_sgd(network, cross_entropy, network.initial(), x.requires_grad_(), y, [torch.arange(4)], 0.1)
    assert not any(value.requires_grad for value in after.values())


def test_many_runs_under_vmap_agree_with_one_after_the_other() -> None:
    network = Network(small())
    runs = [data(6, seed) for seed in range(3)]
    orders = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(s)) for s in range(3)])

    def one(x: Tensor, y: Tensor, order: Tensor) -> dict[str, Tensor]:
        return local_sgd(network, cross_entropy, network.initial(), x, y, order.split(2), 0.2, 0.9)

    stacked = vmap(one)(torch.stack([x for x, _ in runs]), torch.stack([y for _, y in runs]), orders)
    for at, (x, y) in enumerate(runs):
        for name, value in one(x, y, orders[at]).items():
            assert torch.allclose(stacked[name][at], value, atol=1e-6), name


def test_the_mean_of_per_example_gradients_is_the_gradient() -> None:
    network, (x, y) = Network(small()), data(5)
    seen: list[torch.Size] = []

    def look(gradients: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        seen.append(gradients["0.weight"].shape)
        return gradients

    whole = batch_gradient(network, cross_entropy, network.initial(), x, y).parameters
    mean = batch_gradient(network, cross_entropy, network.initial(), x, y, hook=look).parameters
    assert seen == [torch.Size([5, 3, 1, 3, 3])]
    for name, value in whole.items():
        assert torch.allclose(mean[name], value, atol=1e-6)


def test_the_hook_can_silence_an_example() -> None:
    network, (x, y) = Network(small()), data(2)

    def only_first(gradients: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        return {
            name: 2 * g * torch.tensor([1.0, 0.0]).reshape(-1, *[1] * (g.ndim - 1)) for name, g in gradients.items()
        }

    first = network.initial()
    silenced = local_sgd(network, cross_entropy, first, x, y, [torch.arange(2)], 0.1, hook=only_first)
    alone = local_sgd(network, cross_entropy, first, x[:1], y[:1], [torch.arange(1)], 0.1)
    for name, value in alone.items():
        assert torch.allclose(silenced[name], value, atol=1e-6)


def test_the_hook_counts_steps_and_on_step_sees_each_result() -> None:
    network, (x, y) = Network(small()), data(4)
    steps: list[int] = []
    states: list[Tensor] = []

    def note(gradients: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        steps.append(step)
        return gradients

    after = train(
        network,
        cross_entropy,
        network.initial(),
        x,
        y,
        [torch.arange(4)] * 3,
        lr=0.1,
        hook=note,
        on_step=lambda step, now: states.append(now["0.bias"]),
    )
    assert steps == [0, 1, 2]
    assert len(states) == 3
    assert torch.equal(states[-1], after.parameters["0.bias"])


def test_batch_norm_has_no_per_example_gradients_and_says_so() -> None:
    network, (x, y) = Network(small(norm=True)), data(4)
    with pytest.raises(RefusedError, match="GroupNorm"):
        batch_gradient(
            network,
            cross_entropy,
            network.initial(),
            x,
            y,
            buffers=network.buffers(),
            hook=lambda gradients, _: gradients,
        )
