"""The stacked inversion networks are Code 2 of pli.txt, layer for layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedleak.attacks.logits import network
from fedleak.attacks.logits.network import InversionNetwork, plain_network
from fedleak.attacks.logits.training import InversionStack, Material, Objective
from fedleak.learning.precision import Precision

SIZES = [((3, 64, 64), 20, 0.03), ((1, 32, 32), 10, 0.05), ((1, 28, 28), 6, 0.05), ((3, 9, 12), 7, 0.05)]


def code_2(inputs: int, channels: int) -> nn.Sequential:
    """As the paper prints it."""
    return nn.Sequential(
        nn.ConvTranspose2d(inputs, 1024, (4, 4), stride=(1, 1)),
        nn.BatchNorm2d(1024),
        nn.Tanh(),
        nn.ConvTranspose2d(1024, 512, (4, 4), stride=(2, 2), padding=(1, 1)),
        nn.BatchNorm2d(512),
        nn.Tanh(),
        nn.ConvTranspose2d(512, 256, (4, 4), stride=(2, 2), padding=(1, 1)),
        nn.BatchNorm2d(256),
        nn.Tanh(),
        nn.ConvTranspose2d(256, 128, (4, 4), stride=(2, 2), padding=(1, 1)),
        nn.BatchNorm2d(128),
        nn.Tanh(),
        nn.ConvTranspose2d(128, channels, (4, 4), stride=(2, 2), padding=(1, 1)),
        nn.Tanh(),
    )


def like_plain(of: InversionNetwork, seeds: list[int]) -> dict[str, torch.Tensor]:
    """The initial values of torch's layers, stacked."""
    each = [of.from_plain(plain_network(of, seed)) for seed in seeds]
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}


def test_photographs_of_64_pixels_get_code_2() -> None:
    with torch.device("meta"):
        printed = code_2(2000, 3)
    of = InversionNetwork(2000, (3, 64, 64))
    assert of.first == (4, 4)
    assert of.widths == (1024, 512, 256, 128)
    assert sum(value.numel() for value in printed.parameters()) == pytest.approx(43.8e6, rel=1e-3)
    small = InversionNetwork(20, (3, 64, 64), 1 / 64)
    with torch.device("meta"):
        layers = [type(layer) for layer in code_2(20, 3)]
    assert [type(layer) for layer in plain_network(small, 0)] == layers


@pytest.mark.parametrize(("picture", "inputs", "width"), SIZES)
def test_a_stack_computes_what_torchs_layers_do(picture: tuple[int, int, int], inputs: int, width: float) -> None:
    of = InversionNetwork(inputs, picture, width)
    parameters = {name: value.requires_grad_() for name, value in like_plain(of, [3, 4]).items()}
    buffers = of.buffers(2)
    given = torch.rand(2, 5, inputs, generator=torch.Generator().manual_seed(0))
    made = of(parameters, buffers, given, train=True)
    assert made.shape == (2, 5, *picture[1:], picture[0])
    slopes = dict(zip(parameters, torch.autograd.grad(made.square().sum(), list(parameters.values())), strict=True))
    for k, seed in enumerate((3, 4)):
        plain = plain_network(of, seed)
        expected = plain(given[k][:, :, None, None])[:, :, : picture[1], : picture[2]]
        assert torch.allclose(made[k].permute(0, 3, 1, 2), expected, atol=1e-5)
        expected.square().sum().backward()
        theirs = [layer for layer in plain if isinstance(layer, nn.ConvTranspose2d)]
        for level, layer in enumerate(theirs):
            assert layer.weight.grad is not None
            slope = layer.weight.grad.permute(0, 2, 3, 1).reshape(len(layer.weight), -1)
            assert torch.allclose(
                slopes[f"up{level}.weight"][k], slope, rtol=1e-3, atol=1e-5 * float(slope.abs().max())
            )
        plain.eval()
        later = plain(given[k][:, :, None, None])[:, :, : picture[1], : picture[2]]
        assert torch.allclose(of(parameters, buffers, given, train=False)[k].permute(0, 3, 1, 2), later, atol=1e-5)


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_training_a_stack_is_training_each_network_with_torchs_adam(gamma: float) -> None:
    """Five steps of eq. 3 and one of eq. 10 against torch's layers, loss and optimiser."""
    rng = torch.Generator().manual_seed(1)
    of = InversionNetwork(6, (1, 8, 8), 0.01)
    inputs, pictures = torch.rand(2, 7, 6, generator=rng), torch.rand(9, 8, 8, 1, generator=rng) * 2 - 1
    priors, shows = torch.rand(3, 8, 8, 1, generator=rng) * 2 - 1, torch.tensor([8, 1, 2, 3, 4, 5, 0])
    believed = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    asked = torch.rand(3, 6, generator=rng)
    material = Material(inputs, pictures, shows, *((priors, believed) if gamma else ()))
    batches = [torch.tensor(rows) for rows in ([0, 1, 2], [3, 4, 5], [6, 0], [1, 3, 5], [2, 4, 6])]
    stack = InversionStack(of, [3, 4], lr=1e-2, weight_decay=1e-2, device="cpu")
    with torch.no_grad():
        for name, value in like_plain(of, [3, 4]).items():
            stack.parameters[name].copy_(value)
    losses = stack.fit(material, batches, Objective(gamma=gamma))
    if gamma:
        stack.fit_to_priors(asked, priors, Objective(gamma=gamma, prior_only=True))
    for k, seed in enumerate((3, 4)):
        plain = plain_network(of, seed)
        adam = torch.optim.Adam(plain.parameters(), lr=1e-2, weight_decay=1e-2)
        mean = 0.0
        for batch in batches:
            made = plain(inputs[k][batch][:, :, None, None]).permute(0, 2, 3, 1)
            loss = (made - pictures[shows[batch]]).square().mean()
            if gamma:
                loss = loss + gamma * (made - priors[believed[batch]]).square().mean()
            mean += float(loss.detach()) / len(batches)
            adam.zero_grad()
            loss.backward()
            adam.step()
        assert float(losses[k]) == pytest.approx(mean, rel=1e-4)
        if gamma:
            made = plain(asked[:, :, None, None]).permute(0, 2, 3, 1)
            adam.zero_grad()
            (gamma * (made - priors).square().mean()).backward()
            adam.step()
        plain.eval()
        with torch.no_grad():
            expected = (plain(asked[:, :, None, None]) + 1) / 2
        # Biases before a normalisation have no slope but rounding, which Adam makes as large as any other.
        assert torch.allclose(stack.show(asked)[k], expected, atol=5e-3)


def test_products_have_the_stated_precision_in_training_and_showing_only(monkeypatch: pytest.MonkeyPatch) -> None:
    of, flags = InversionNetwork(6, (1, 8, 8), 0.01), (torch.backends.cuda.matmul, torch.backends.cudnn)
    material = Material(torch.rand(1, 4, 6), torch.rand(4, 8, 8, 1), torch.arange(4))
    seen: list[bool] = []
    plain = InversionNetwork.__call__

    def look(self: InversionNetwork, *given: Any, **named: Any) -> torch.Tensor:
        seen.extend(flag.allow_tf32 for flag in flags)
        return plain(self, *given, **named)

    monkeypatch.setattr(InversionNetwork, "__call__", look)
    before = [flag.allow_tf32 for flag in flags]
    precisions: tuple[Precision, ...] = ("tf32", "float32")
    for precision in precisions:
        stack = InversionStack(of, [3], lr=1e-2, weight_decay=0.0, device="cpu", precision=precision)
        stack.fit(material, [torch.arange(4)], Objective())
        stack.fit_to_priors(torch.rand(2, 6), torch.rand(2, 8, 8, 1), Objective(gamma=1.0, prior_only=True))
        stack.show(torch.rand(2, 6))
        assert seen == [precision == "tf32"] * 6
        assert [flag.allow_tf32 for flag in flags] == before
        seen.clear()


def test_a_network_does_not_depend_on_who_is_beside_it() -> None:
    of = InversionNetwork(4, (1, 8, 8), 0.01)
    rng = torch.Generator().manual_seed(2)
    inputs, pictures = torch.rand(2, 8, 4, generator=rng), torch.rand(8, 8, 8, 1, generator=rng)
    batches = [torch.arange(4), torch.arange(4, 8)]
    both = InversionStack(of, [5, 6], lr=1e-2, weight_decay=0.0, device="cpu")
    alone = InversionStack(of, [6], lr=1e-2, weight_decay=0.0, device="cpu")
    shows = torch.arange(8)
    both.fit(Material(inputs, pictures, shows), batches, Objective())
    alone.fit(Material(inputs[1:], pictures, shows), batches, Objective())
    assert torch.allclose(both.show(inputs[0])[1], alone.show(inputs[0])[0], atol=1e-4)


def test_the_slope_of_a_normalised_layer_is_autograds() -> None:
    """In closed form through mean and deviation, which depend on the values too; far from 0 as well as around it."""
    rng = torch.Generator().manual_seed(3)
    value = (torch.randn(2, 9, 4, generator=rng, dtype=torch.float64) + 20).requires_grad_()
    weight, bias = (torch.randn(2, 1, 4, generator=rng, dtype=torch.float64).requires_grad_() for _ in range(2))
    pull = torch.randn(2, 9, 4, generator=rng, dtype=torch.float64)
    variance, mean = torch.var_mean(value, dim=1, keepdim=True, correction=0)
    plain = torch.tanh((value - mean) * torch.rsqrt(variance + network.EPSILON) * weight + bias)
    parameters = {"norm0.weight": weight, "norm0.bias": bias}
    buffers = {name: torch.zeros(2, 1, 4, dtype=torch.float64) for name in ("norm0.mean", "norm0.variance")}
    ours = network._normalised(value, "norm0", parameters, buffers, True)
    found, expected = (torch.autograd.grad((made * pull).sum(), [value, weight, bias]) for made in (ours, plain))
    torch.testing.assert_close(ours, plain)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_unsquared_norm_is_the_norm_of_a_picture() -> None:
    made, aim = torch.zeros(1, 2, 2, 2, 1), torch.zeros(2, 2, 2, 1)
    aim[0] = 3.0  # four pixels of 3: norm 6
    assert float(Objective("norm")(made, aim)) == pytest.approx(3.0)
    assert float(Objective("mse")(made, aim)) == pytest.approx(4.5)
    assert float(Objective("mse", gamma=0.5)(made, aim, aim)) == pytest.approx(6.75)
    assert float(Objective("mse", gamma=0.5, prior_only=True)(made, aim)) == pytest.approx(2.25)


def test_training_in_eval_mode_leaves_the_running_statistics_alone() -> None:
    of = InversionNetwork(4, (1, 8, 8), 0.01)
    stack = InversionStack(of, [1], lr=1e-2, weight_decay=0.0, device="cpu")
    before = {name: value.clone() for name, value in stack.buffers.items()}
    weights = stack.parameters["up0.weight"].detach().clone()
    material = Material(torch.rand(1, 4, 4), torch.rand(4, 8, 8, 1), torch.arange(4))
    stack.fit(material, [torch.arange(4)], Objective(train=False))
    assert all(torch.equal(before[name], value) for name, value in stack.buffers.items())
    assert not torch.equal(weights, stack.parameters["up0.weight"])
    stack.fit(material, [torch.arange(4)], Objective(train=True))
    assert not torch.equal(before["norm0.mean"], stack.buffers["norm0.mean"])


def test_initial_values_are_spread_as_torchs_are() -> None:
    of = InversionNetwork(12, (3, 32, 32), 0.03)
    ours, theirs = of.parameters([1, 2]), like_plain(of, [1, 2])
    assert {name: value.shape for name, value in ours.items()} == {name: v.shape for name, v in theirs.items()}
    for name, value in ours.items():
        if name.startswith("norm"):
            assert torch.equal(value, theirs[name])
        elif value.numel() > 500:
            assert float(value.abs().max()) == pytest.approx(float(theirs[name].abs().max()), rel=0.01)
            assert float(value.std()) == pytest.approx(float(theirs[name].std()), rel=0.05)


def test_initial_values_come_from_the_seed_and_leave_torchs_generator_alone() -> None:
    of = InversionNetwork(4, (1, 8, 8), 0.01)
    state = torch.random.get_rng_state()
    one, same, other = (of.parameters([seed])["up0.weight"] for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
