"""The objective: all problems at once are each problem alone, and modules that resist are told apart."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn

from fedleak.attacks.inversion import objective
from fedleak.attacks.inversion.distances import SquaredL2
from fedleak.attacks.inversion.dummies import Dummies
from fedleak.attacks.inversion.objective import GradientMatch
from fedleak.errors import RefusedError
from fedleak.learning.functional import Network, cross_entropy

SHAPE, CLASSES = (1, 4, 4), 3


class Branching(nn.Module):
    """Looks at a value: torch.func cannot map over it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        out = self.head(inputs.flatten(1)).tanh()
        return out if out.sum().item() > 1e9 else 2 * out


class OnceOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        ctx.save_for_backward(inputs)
        return inputs.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (inputs,) = ctx.saved_tensors
        return 2 * inputs * slope


class Hard(nn.Module):
    """Its backward pass cannot be differentiated again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(16, 5), nn.Linear(5, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(OnceOnly.apply(self.first(inputs.flatten(1))))


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double()


def smooth() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(32, CLASSES))


def normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Sigmoid(), nn.Flatten(), nn.Linear(32, 3))


def matching(module: nn.Module, images: int = 2, piece: int = 64) -> GradientMatch:
    network = Network(module)
    dummies = Dummies(images, SHAPE, CLASSES)
    return GradientMatch(network, network.initial(), network.buffers(), cross_entropy, dummies, SquaredL2(), piece)


def problems(match: GradientMatch, count: int = 3) -> tuple[Tensor, list[Tensor]]:
    rng = torch.Generator().manual_seed(1)
    points = torch.randn(count, match.dummies.size, generator=rng, dtype=torch.float64)
    return points, [torch.randn(count, *w.shape, generator=rng, dtype=torch.float64) for w in match.weights.values()]


def by_hand(match: GradientMatch, point: Tensor, target: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """|grad - target|^2 of one problem through torch's plain double backward."""
    point = point.clone().requires_grad_()
    pixels = match.dummies.pixels
    inputs = point[:pixels].reshape(match.dummies.images, *SHAPE)
    labels = point[pixels:].reshape(match.dummies.images, CLASSES).softmax(dim=1)
    module = match.network.module
    loss = -(labels * module(inputs).log_softmax(dim=1)).sum(dim=1).mean()
    found = torch.autograd.grad(loss, list(module.parameters()), create_graph=True)
    value = sum(((g - t) ** 2).sum() for g, t in zip(found, target, strict=True))
    (slope,) = torch.autograd.grad(value, point)
    return value.detach(), slope


@pytest.mark.parametrize("make", [smooth, normed, Branching])
def test_all_problems_at_once_are_each_problem_alone(make: Callable[[], nn.Module]) -> None:
    match = matching(seeded(make))
    points, targets = problems(match)
    values, slopes = match(points, targets)
    for at in range(len(points)):
        value, slope = by_hand(match, points[at], [t[at] for t in targets])
        torch.testing.assert_close(values[at], value)
        torch.testing.assert_close(slopes[at], slope)


def test_only_a_module_that_cannot_be_mapped_falls_back_and_says_so() -> None:
    assert matching(seeded(smooth)).fallback == ""
    for make in (Branching, normed):  # torch maps BatchNorm, but to the wrong second derivatives
        stubborn = matching(seeded(make))
        assert "one by one" in stubborn.fallback
        assert stubborn.piece == 1


def test_a_module_that_is_not_twice_differentiable_is_refused() -> None:
    with pytest.raises(RefusedError, match="twice differentiable"):
        matching(seeded(Hard))


def test_a_zero_second_derivative_is_no_reason_to_refuse() -> None:
    """A linear network: the activations do not bend, but the loss does."""
    match = matching(seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, CLASSES))))
    values, slopes = match(*problems(match))
    assert values.isfinite().all()
    assert slopes.isfinite().all()


def test_buffers_are_never_changed() -> None:
    match = matching(seeded(normed))
    before = {name: value.clone() for name, value in match.buffers.items()}
    match(*problems(match))
    assert all(torch.equal(before[name], value) for name, value in match.buffers.items())


def test_where_memory_runs_out_the_batch_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    match = matching(seeded(smooth))
    points, targets = problems(match, 7)
    expected = match(points, targets)
    whole = match._together

    def small(points: Tensor, targets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        if len(points) > 2:
            raise torch.OutOfMemoryError("too large")
        return whole(points, targets)

    monkeypatch.setattr(match, "_together", small)
    found = match(points, targets)
    assert match.piece == 1  # 7 halves to 3, 3 to 1
    torch.testing.assert_close(found, expected)


def test_on_a_cpu_as_many_problems_as_have_room_are_evaluated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that takes too much there is killed, not told: 7 problems in the room of 3 go by threes."""
    free = matching(seeded(smooth))
    assert free.piece == 64
    points, targets = problems(free, 7)
    monkeypatch.setattr(objective, "ROOM_ON_A_CPU", 1)
    assert matching(seeded(smooth)).piece == 1, "one problem is always tried"
    one = next(room for room in range(1000, 10**6, 1000) if _piece_in(monkeypatch, room) == 3)
    tight = matching(seeded(smooth))
    assert tight.piece == 3
    assert _piece_in(monkeypatch, 2 * one) in (6, 7)
    torch.testing.assert_close(tight(points, targets), free(points, targets))


def _piece_in(monkeypatch: pytest.MonkeyPatch, room: int) -> int:
    monkeypatch.setattr(objective, "ROOM_ON_A_CPU", room)
    return matching(seeded(smooth)).piece


def test_memory_that_is_too_small_for_one_problem_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(points: Tensor, targets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        raise torch.OutOfMemoryError("too large")

    match = matching(seeded(smooth))
    monkeypatch.setattr(match, "_together", none)
    with pytest.raises(torch.OutOfMemoryError):
        match(*problems(match))


def test_dummies_are_laid_out_as_images_then_labels() -> None:
    dummies = Dummies(2, SHAPE, CLASSES)
    assert dummies.size == 2 * 16 + 2 * 3
    points = torch.arange(2 * dummies.size, dtype=torch.float32).reshape(2, -1)
    assert dummies.inputs(points).shape == (2, 2, *SHAPE)
    assert dummies.logits(points)[0].flatten().tolist() == list(range(32, 38))


def test_one_start_is_the_papers() -> None:
    start = Dummies(2, SHAPE, CLASSES).draw(torch.Generator().manual_seed(0))
    assert torch.equal(start, torch.randn(1, 38, generator=torch.Generator().manual_seed(0)))


def test_the_spread_is_that_of_the_images_only() -> None:
    dummies = Dummies(1, (1, 40, 40), 1600)
    start = dummies.draw(torch.Generator().manual_seed(0), spread=0.1)
    assert 0.09 < float(dummies.inputs(start).std()) < 0.11
    assert 0.9 < float(dummies.logits(start).std()) < 1.1


def test_every_second_of_several_starts_is_sure_of_its_labels() -> None:
    """Each a class further, so that a few starts see many classes; two images of a start are of different classes."""
    dummies = Dummies(2, SHAPE, 4)
    starts = dummies.draw(torch.Generator().manual_seed(0), 9)
    likely, labels = dummies.logits(starts).softmax(dim=-1).max(dim=-1)
    assert (likely[1::2] > 0.95).all()
    assert (likely[0::2] < 0.95).all()
    sure = labels[1::2]
    assert sorted(sure[:, 0].tolist()) == sorted(sure[:, 1].tolist()) == [0, 1, 2, 3]
    assert (sure[:, 0] != sure[:, 1]).all()


@pytest.mark.parametrize("recorded", [False, True])
def test_an_objective_goes_when_nobody_holds_it(recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU its graphs hold gigabytes, which must not wait until Python looks for cycles."""
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda self: recorded), raising=False)
    monkeypatch.setattr(GradientMatch, "_probe", lambda self: None)
    before = gc.isenabled()
    gc.disable()
    try:
        match = matching(seeded(smooth))
        values, _ = match(*problems(match))
        assert (match._replay is not None) == recorded
        gone = ref(match)
        del match
        assert gone() is None
        assert values.isfinite().all()
    finally:
        if before:
            gc.enable()
