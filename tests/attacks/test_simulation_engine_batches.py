"""Many victims at once: each gets what it gets alone, in pieces, on several cores, replayed, or short of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from fedleak.attacks.simulation import unroll
from fedleak.attacks.simulation.replay import Direct, Recorded
from fedleak.attacks.simulation.unroll import Simulation
from fedleak.learning.functional import Network, loss_named
from fedleak.models import build_model
from fedleak.types import ModelSpec

LOSS = loss_named("cross_entropy")
SHAPE, STEPS, IMAGES, CLASSES, LR = (1, 8, 8), 4, 2, 3, 0.05

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def network(name: str = "cnn_femnist") -> Network:
    arguments = {"widths": [3, 4], "hidden": 6} if name.startswith("cnn") else {"channels": 2}
    return Network(build_model(ModelSpec(name, arguments), SHAPE, CLASSES, torch.Generator().manual_seed(0)).double())


def problem(net: Network, victims: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    rng = torch.Generator().manual_seed(victims)
    inputs = torch.randn(victims, STEPS, IMAGES, *SHAPE, generator=rng, dtype=torch.float64)
    labels = torch.randint(0, CLASSES, (victims, STEPS, IMAGES), generator=rng)
    return inputs, labels, [torch.randn(victims, *v.shape, generator=rng).double() for v in net.initial().values()]


def squared(update: dict[str, Tensor], given: Sequence[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    apart = {name: value - target for (name, value), target in zip(update.items(), given, strict=True)}
    value = torch.stack([one.square().flatten(1).sum(dim=1) for one in apart.values()]).sum(dim=0)
    return value, {name: 2 * one for name, one in apart.items()}


def simulation(net: Network, **arguments: Any) -> Simulation:
    return Simulation(net, LOSS, net.initial(), lr=LR, steps_per_epoch=2, **arguments)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def each_alone(net: Network, inputs: Tensor, labels: Tensor, targets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    rows = [slice(v, v + 1) for v in range(len(inputs))]
    found = [simulation(net)(inputs[v], labels[v], None, squared, [one[v] for one in targets]) for v in rows]
    return torch.cat([value for value, _ in found]), torch.cat([slope for _, slope in found])


@pytest.mark.parametrize("name", ["cnn_femnist", "lenet"])
def test_every_victim_gets_what_it_gets_alone(name: str) -> None:
    net = network(name)
    inputs, labels, targets = problem(net, 5)
    expected = each_alone(net, inputs, labels, targets)
    for piece in (1, 2, 5):
        found = simulation(net, piece=piece)(inputs, labels, None, squared, targets)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_pieces_on_several_cores_are_the_same_and_leave_the_number_of_threads_alone() -> None:
    net = network()
    inputs, labels, targets = problem(net, 3)
    expected = each_alone(net, inputs, labels, targets)
    torch.set_num_threads(2)
    one = simulation(net)
    torch.testing.assert_close(one(inputs, labels, None, squared, targets), expected, rtol=1e-10, atol=1e-12)
    assert one.piece == 2
    assert torch.get_num_threads() == 2


def test_the_same_call_has_the_same_bits() -> None:
    net = Network(network().module.float())
    inputs, labels, targets = problem(net, 3)
    given = inputs.float(), labels, None, squared, [one.float() for one in targets]
    first, second = (simulation(net)(*given) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_out_of_memory_halves_the_piece_and_what_is_done_stays_done() -> None:
    net = network()
    inputs, labels, targets = problem(net, 7)
    seen: list[int] = []

    def narrow(update: dict[str, Tensor], given: Sequence[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        seen.append(len(given[0]))
        if len(seen) > 1 and seen[-1] > 2:
            raise torch.OutOfMemoryError("no room")
        return squared(update, given)

    tight = simulation(net, piece=4)
    value, slope = tight(inputs, labels, None, narrow, targets)
    assert seen == [4, 3, 1, 1, 1]
    assert tight.piece == 1
    torch.testing.assert_close((value, slope), simulation(net)(inputs, labels, None, squared, targets))

    def never(update: dict[str, Tensor], given: Sequence[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError):
        tight(inputs, labels, None, never, targets)


def test_pieces_are_of_one_size_and_the_given_is_cut_like_the_victims() -> None:
    net = network()
    inputs, labels, targets = problem(net, 9)
    seen: list[list[int]] = []

    def look(update: dict[str, Tensor], given: Sequence[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        seen.append(given[-1].tolist())
        assert list(update) == list(net.initial())
        return squared(update, given[:-1])

    simulation(net, piece=4)(inputs, labels, None, look, [*targets, torch.arange(9)])
    assert seen == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_tf32_is_switched_on_inside_a_call_only_and_float32_means_float32() -> None:
    net = network("lenet")
    inputs, labels, targets = problem(net, 1)
    flags = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [flag.allow_tf32 for flag in flags]
    for precision, wanted in (("tf32", True), ("float32", False)):
        seen: list[bool] = []

        def look(
            update: dict[str, Tensor], given: Sequence[Tensor], seen: list[bool] = seen
        ) -> tuple[Tensor, dict[str, Tensor]]:
            seen += [flag.allow_tf32 for flag in flags]
            return squared(update, given)

        simulation(net, precision=precision)(inputs, labels, None, look, targets)
        assert seen == [wanted, wanted]
        assert [flag.allow_tf32 for flag in flags] == before


class Tape(Recorded):
    """Stands for recording on a GPU: computes from the tensors it was recorded with, into those it was."""

    def _first_run(self, work: Callable[[], list[Tensor]]) -> list[Tensor]:
        return work()

    def _capture(self, work: Callable[[], list[Tensor]]) -> tuple[list[Tensor], Any]:
        state = [one.clone() for one in (*self.state, *self.adjoint)]
        made = [one.clone() for one in work()]
        for one, old in zip((*self.state, *self.adjoint), state, strict=True):
            one.copy_(old)

        class Graph:
            def replay(self) -> None:
                for kept, fresh in zip(made, work(), strict=True):
                    kept.copy_(fresh)

        return made, Graph()


@pytest.mark.parametrize("checkpoint", ["step", "epoch"])
@pytest.mark.parametrize("name", ["cnn_femnist", "lenet"])
def test_replayed_steps_are_the_plain_ones_also_for_fewer_victims(name: str, checkpoint: Any) -> None:
    net = network(name)
    one = simulation(net, checkpoint=checkpoint)
    one(*problem(net, 1)[:2], None, squared, problem(net, 1)[2])
    steps = one._chosen.steps
    tape = Tape(steps, 4, one._slots(STEPS))
    for victims in (4, 3, 4, 1):
        inputs, labels, targets = problem(net, victims)
        found = []
        for runner in (tape, Direct(steps)):
            slopes = torch.empty_like(inputs)
            with torch.no_grad():
                values = one._run(runner, inputs, labels, None, squared, tuple(targets), slopes)
            found.append((values, slopes))
        torch.testing.assert_close(*found, rtol=1e-12, atol=1e-13)


@needs_cuda
@pytest.mark.parametrize("checkpoint", ["step", "epoch"])
@pytest.mark.parametrize("name", ["cnn_femnist", "lenet"])
def test_a_gpu_replays_what_a_cpu_computes(name: str, checkpoint: Any) -> None:
    net = network(name)
    inputs, labels, targets = problem(net, 5)
    expected = simulation(net)(inputs, labels, None, squared, targets)
    on_gpu = Network(net.module.cuda())
    one = simulation(on_gpu, checkpoint=checkpoint, piece=3)
    mask = torch.ones(5, STEPS, IMAGES)
    for held in (None, mask.cuda(), None):
        value, slope = one(inputs.cuda(), labels.cuda(), held, squared, [t.cuda() for t in targets])
        torch.testing.assert_close((value.cpu(), slope.cpu()), expected, rtol=1e-8, atol=1e-9)
    assert not one.uncaptured
    assert not one.fallback


def test_a_step_that_cannot_be_recorded_is_computed_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cuda(Simulation):
        def _recorded(self, inputs: Tensor, share: Tensor | None) -> Recorded:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")

    net = network()
    inputs, labels, targets = problem(net, 2)
    one = Cuda(net, LOSS, net.initial(), lr=LR, steps_per_epoch=2)
    monkeypatch.setattr(unroll, "_on_gpu", lambda _inputs: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    found = one(inputs, labels, None, squared, targets)
    torch.testing.assert_close(found, simulation(net)(inputs, labels, None, squared, targets))
    assert one.uncaptured == (
        "steps are not replayed as a CUDA graph (RuntimeError: operation not permitted when stream is capturing)"
    )
