"""Networks trained at once are the networks that torch.optim trains one by one."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Sequence
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedleak.errors import RefusedError, ShapeError
from fedleak.learning.batches import epoch_batches
from fedleak.learning.functional import cross_entropy
from fedleak.learning.layout import apart, channels_first_is_slow, channels_last
from fedleak.learning.objectives import absolute_error, divergence, entropy
from fedleak.learning.stacked import Mode, Stack
from fedleak.learning.turns import lined_up

MODES: tuple[Mode, ...] = ("loop", "stacked")


def network(seed: int, dropout: float = 0.0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, bias=False),  # a bias before BatchNorm has a gradient of rounding errors only
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(4 * 9, 5),
        )


def data(count: int = 20, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(count, 1, 6, 6, generator=rng), torch.randint(0, 5, (count,), generator=rng)


def orders(count: int, networks: int, batch: int = 8, epochs: int = 2) -> list[list[Tensor]]:
    rng = torch.Generator().manual_seed(1)
    return [[b for _ in range(epochs) for b in epoch_batches(count, batch, rng)] for _ in range(networks)]


def by_torch(
    module: nn.Module, inputs: Tensor, targets: Tensor, order: Sequence[Tensor], kind: str, loss: Any, **settings: float
) -> tuple[nn.Module, float]:
    module = copy.deepcopy(module).train()
    make = torch.optim.Adam if kind == "adam" else torch.optim.SGD
    optimiser: torch.optim.Optimizer = make(module.parameters(), **settings)  # type: ignore[arg-type]
    total = 0.0
    for batch in order:
        optimiser.zero_grad()
        value = loss(module(inputs[batch]), targets[batch])
        value.backward()
        optimiser.step()
        total += float(value.detach())
    return module, total / max(1, len(order))


def same(one: nn.Module, two: nn.Module, tolerance: float = 2e-5) -> bool:
    pairs = zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    return all(torch.allclose(a, b, atol=tolerance) for a, b in pairs)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [("adam", {"lr": 1e-2, "weight_decay": 0.1}), ("sgd", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01})],
)
def test_each_network_is_trained_as_torch_trains_it_alone(
    mode: Mode, kind: Literal["adam", "sgd"], settings: dict[str, float]
) -> None:
    inputs, labels = data()
    modules, order = [network(k) for k in range(3)], orders(20, 3)
    order[1] = order[1][:4]  # one is finished earlier
    stack = Stack(modules, optimiser=kind, mode=mode, **settings)  # type: ignore[arg-type]
    losses = stack.fit(cross_entropy, inputs, [labels], order)
    assert stack.notes == {}
    for k, module in enumerate(modules):
        expected, loss = by_torch(module, inputs, labels, order[k], kind, cross_entropy, **settings)
        assert same(stack.modules[k], expected)
        assert float(losses[k]) == pytest.approx(loss, abs=1e-5)
        assert not same(stack.modules[k], module), "nothing was learnt"


@pytest.mark.parametrize("mode", MODES)
def test_each_network_may_have_data_of_its_own_and_soft_targets(mode: Mode) -> None:
    own = [data(count, seed=count) for count in (9, 20, 13)]
    soft = [torch.softmax(torch.randn(len(y), 5, generator=torch.Generator().manual_seed(3)), dim=-1) for _, y in own]
    modules = [network(k) for k in range(3)]
    rng = torch.Generator().manual_seed(2)
    order = [[b for _ in range(3) for b in epoch_batches(len(y), 4, rng) if len(b) > 1] for _, y in own]
    stack = Stack(modules, lr=0.01, mode=mode)
    stack.fit(cross_entropy, [x for x, _ in own], [soft], order)
    for k, module in enumerate(modules):
        expected, _ = by_torch(module, own[k][0], soft[k], order[k], "adam", cross_entropy, lr=0.01)
        assert same(stack.modules[k], expected)


class Partly(nn.Module):
    """One layer is frozen, and nothing goes through another."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.body, self.aside = network(seed), nn.Linear(2, 2)
        self.body[0].requires_grad_(False)  # type: ignore[index]

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.body(inputs)
        return out


@pytest.mark.parametrize("kind", ["adam", "sgd"])
@pytest.mark.parametrize("mode", MODES)
def test_frozen_layers_stay_and_what_is_not_used_is_no_fault(mode: Mode, kind: Literal["adam", "sgd"]) -> None:
    given, (inputs, labels) = [Partly(1), Partly(2)], data()
    order = orders(len(inputs), 2)
    stack = Stack(given, lr=0.01, optimiser=kind, mode=mode)
    stack.fit(cross_entropy, inputs, [labels], order)
    assert "stacked" not in stack.notes
    for k, before in enumerate(given):
        alone, _ = by_torch(before, inputs, labels, order[k], kind, cross_entropy, lr=0.01)
        trained, kept = stack.weights(k)
        expected, found = dict(alone.named_parameters()), {**trained, **kept}
        assert "body.0.weight" in kept
        assert set(trained) == set(expected) - {"body.0.weight"}
        assert all(torch.allclose(found[name], expected[name], atol=1e-4) for name in expected)
        assert torch.equal(found["body.0.weight"], dict(before.named_parameters())["body.0.weight"])
        assert not torch.equal(found["body.6.weight"], dict(before.named_parameters())["body.6.weight"])


def test_a_network_that_cannot_learn_is_refused() -> None:
    with pytest.raises(RefusedError, match="model='Sequential': every parameter is frozen"):
        Stack([network(1).requires_grad_(False)], lr=0.1)


def test_losses_take_turns_on_one_optimiser() -> None:
    """Adam's moments go on from one call to the next: the second call is not a fresh start."""
    inputs, labels = data()
    logits = torch.randn(20, 5, generator=torch.Generator().manual_seed(4))
    order = orders(20, 1)
    stack, fresh = Stack([network(0)], lr=0.01), Stack([network(0)], lr=0.01)
    for one in (stack, fresh):
        one.fit(cross_entropy, inputs, [labels], order)
    fresh.reset_optimisers()
    for one in (stack, fresh):
        one.fit(absolute_error, inputs, [logits], order)
    module = copy.deepcopy(network(0)).train()
    optimiser = torch.optim.Adam(module.parameters(), lr=0.01)
    for loss, target in ((nn.functional.cross_entropy, labels), (nn.functional.l1_loss, logits)):
        for batch in order[0]:
            optimiser.zero_grad()
            loss(module(inputs[batch]), target[batch]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    assert same(stack.modules[0], module)
    assert not same(fresh.modules[0], module, 1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_a_step_on_given_batches(mode: Mode) -> None:
    inputs, labels = data(16)
    stack = Stack([network(0), network(1)], lr=0.01, mode=mode)
    losses = stack.step(cross_entropy, inputs.reshape(2, 8, 1, 6, 6), labels.reshape(2, 8))
    for k in range(2):
        index = torch.arange(8 * k, 8 * k + 8)
        expected, loss = by_torch(network(k), inputs, labels, [index], "adam", cross_entropy, lr=0.01)
        assert same(stack.modules[k], expected)
        assert float(losses[k]) == pytest.approx(loss, abs=1e-6)


def test_predictions_are_those_of_the_modules_in_eval_mode() -> None:
    inputs, labels = data()
    stack = Stack([network(0, 0.5), network(1, 0.5)], lr=0.01)
    stack.fit(cross_entropy, inputs, [labels], orders(20, 2))
    found = stack.predict(inputs, batch_size=7)
    assert found.shape == (2, 20, 5)
    assert not found.requires_grad
    for k in range(2):
        assert torch.allclose(found[k], stack.modules[k].eval()(inputs), atol=1e-6)
    uneven = stack.predict_each([inputs[:3], inputs[:5]])
    assert [len(one) for one in uneven] == [3, 5]
    assert torch.allclose(uneven[1], found[1, :5], atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_a_checkpoint_goes_on_where_it_was_taken(mode: Mode) -> None:
    inputs, labels = data()
    order = orders(20, 2)
    straight = Stack([network(0), network(1)], lr=0.01, mode=mode)
    straight.fit(cross_entropy, inputs, [labels], order)
    kept = straight.state()
    straight.fit(cross_entropy, inputs, [labels], order)
    resumed = Stack([network(7), network(8)], lr=0.01, mode=mode)
    resumed.fit(cross_entropy, inputs, [labels], order)
    resumed.load(kept)
    resumed.fit(cross_entropy, inputs, [labels], order)
    for one, two in zip(straight.modules, resumed.modules, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_dropout_draws_from_the_generator_and_leaves_the_global_one_alone(mode: Mode) -> None:
    inputs, labels = data()
    found = []
    for seed in (1, 1, 2):
        before = torch.random.get_rng_state()
        stack = Stack([network(0, 0.5), network(0, 0.5)], lr=0.01, mode=mode)
        same_order = [orders(20, 1)[0]] * 2
        stack.fit(cross_entropy, inputs, [labels], same_order, rng=torch.Generator().manual_seed(seed))
        assert torch.equal(torch.random.get_rng_state(), before)
        found.append(stack.predict(inputs))
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2])
    assert not torch.allclose(found[0][0], found[0][1]), "both networks dropped the same"


def test_what_was_given_is_not_changed() -> None:
    module = network(0)
    before = copy.deepcopy(module)
    Stack([module, module], lr=0.1).fit(cross_entropy, data()[0], [data()[1]], orders(20, 2))
    assert same(module, before, 0.0)


def test_a_module_that_cannot_be_stacked_is_trained_one_by_one_and_the_notes_say_so() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.layer(x)
            return found if float(x.sum()) > 0 else -found

    inputs, labels = torch.rand(6, 4), torch.tensor([0, 1, 0, 1, 0, 1])
    order = [[torch.arange(6)]] * 2
    modules = [Branches(), Branches()]
    stack = Stack(modules, lr=0.1, mode="stacked")
    stack.fit(cross_entropy, inputs, [labels], order)
    assert "not stacked" in stack.notes["stacked"]
    expected, _ = by_torch(modules[1], inputs, labels, order[1], "adam", cross_entropy, lr=0.1)
    assert same(stack.modules[1], expected)


def test_bad_input_is_refused_with_the_reason() -> None:
    with pytest.raises(RefusedError, match="at least one network"):
        Stack([], lr=0.1)
    with pytest.raises(ShapeError, match="same architecture"):
        Stack([nn.Linear(2, 3), nn.Linear(3, 3)], lr=0.1)
    stack = Stack([nn.Linear(2, 3), nn.Linear(2, 3)], lr=0.1)
    x, y = torch.rand(4, 2), torch.tensor([0, 1, 2, 0])
    with pytest.raises(ShapeError, match="1 lists of batches for 2 networks"):
        stack.fit(cross_entropy, x, [y], [[torch.arange(4)]])
    with pytest.raises(ShapeError, match="3 tensors for 2 networks"):
        stack.fit(cross_entropy, [x] * 3, [y], [[torch.arange(4)]] * 2)
    with pytest.raises(ShapeError, match="of 1 networks"):
        stack.load(Stack([nn.Linear(2, 3)], lr=0.1).state())


@given(st.lists(st.lists(st.integers(1, 3), max_size=6), min_size=1, max_size=5))
def test_turns_take_every_step_once_in_order_with_batches_of_one_size(sizes: list[list[int]]) -> None:
    at = [0] * len(sizes)
    for group in lined_up(sizes):
        assert len({sizes[k][at[k]] for k in group}) == 1
        for k in group:
            at[k] += 1
    assert at == [len(own) for own in sizes]


def test_networks_wait_so_that_more_go_together() -> None:
    # Epochs of 3 and 4 batches, the last one short: only the short ones and the surplus go alone.
    short, long = [8, 8, 3] * 2, [8, 8, 8, 5] * 2
    groups = list(lined_up([short, long]))
    assert groups.count([0, 1]) == 4
    assert len(groups) == 4 + 2 + 4


def test_objectives_by_hand() -> None:
    outputs, targets = torch.tensor([[0.0, 0.0], [0.0, torch.log(torch.tensor(3.0))]]), torch.tensor([[1.0, 0], [0, 1]])
    assert float(absolute_error(outputs, targets)) == pytest.approx((1 + 0 + 0 + (1.0986123 - 1)) / 4, abs=1e-6)
    # KL of a sure teacher is -log p: log 2 and log 4/3, the mean over examples.
    assert float(divergence(outputs, targets)) == pytest.approx((0.6931472 + 0.2876821) / 2, abs=1e-6)
    assert entropy(outputs).tolist() == pytest.approx([0.6931472, 0.25 * 1.3862944 + 0.75 * 0.2876821], abs=1e-6)
    halves = torch.full((2, 2), 0.5)
    assert float(divergence(outputs[:1], halves[:1])) == pytest.approx(0.0, abs=1e-7)


def test_pictures_are_laid_out_anew_only_for_torchs_own_layers_with_pooling() -> None:
    class Own(nn.Flatten):
        pass

    pooled = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten())
    assert channels_first_is_slow(pooled)
    assert not channels_first_is_slow(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()))
    assert not channels_first_is_slow(nn.Sequential(nn.MaxPool2d(2), Own()))
    pictures = torch.rand(2, 1, 5, 4)
    assert torch.equal(channels_last(pictures), pictures)
    assert channels_last(pictures).stride() == (20, 1, 4, 1)
    assert channels_last(pictures[0]).stride() == pictures[0].stride()


def test_a_copy_of_one_network_holds_no_more_than_that_network() -> None:
    """Its buffers are rows of a tensor of all networks: a frozen backbone would be copied as often as there are any."""
    stack = Stack([network(k) for k in range(8)], lr=1e-2)
    made = apart(stack.modules[3])
    assert same(made, stack.modules[3], 0.0)
    for value in (*made.parameters(), *made.buffers()):
        assert value.untyped_storage().nbytes() == value.nbytes
    before = {name: value.clone() for name, value in stack.modules[3].state_dict().items()}
    for value in made.state_dict().values():
        value.zero_()
    assert all(torch.equal(value, before[name]) for name, value in stack.modules[3].state_dict().items())


def test_a_stack_goes_when_nobody_holds_it() -> None:
    """On a GPU it holds gigabytes, which must not wait until Python looks for cycles."""
    inputs, labels = data()
    before = gc.isenabled()
    gc.disable()
    try:
        stack = Stack([network(k) for k in range(2)], lr=1e-2)
        stack.fit(cross_entropy, inputs, [labels], orders(20, 2))
        gone = weakref.ref(stack)
        del stack
        assert gone() is None
    finally:
        if before:
            gc.enable()
