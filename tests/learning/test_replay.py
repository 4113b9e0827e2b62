"""Steps that are recorded once as a CUDA graph, on graphs that are pretended: what a GPU does between two kernels."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedleak.attacks.logits.network import InversionNetwork
from fedleak.attacks.logits.training import InversionStack, Material, Objective
from fedleak.learning import replay
from fedleak.learning.batches import epoch_batches
from fedleak.learning.stacked import Mode, Stack
from pretended_graphs import Always, Graph, pretend


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    Graph.alive.clear()


def networks(count: int, drop: float = 0.0) -> list[nn.Module]:
    torch.manual_seed(0)
    layers = [
        [nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Dropout(drop), nn.Linear(48, 4)]
        for _ in range(count)
    ]
    return [nn.Sequential(*own) for own in layers]


def on_a_gpu(modules: list[nn.Module], **settings: Any) -> Stack:
    """As it is on one: every step asks for a graph."""
    stack = Stack(modules, lr=1e-2, **settings)
    stack._steps._replay.__class__ = Always
    stack._steps.mode = "streams"
    return stack


def train(stack: Stack, loss: Any = cross_entropy) -> Tensor:
    """Shared data, data of one's own, given batches; batches of two sizes. All losses."""
    rng = torch.Generator().manual_seed(0)
    inputs, labels = torch.rand(30, 1, 6, 6, generator=rng), torch.randint(0, 4, (30,), generator=rng)
    given, said = inputs.clone(), []
    for epoch in range(6):
        order = [epoch_batches(30, 8, torch.Generator().manual_seed(9 * epoch + k)) for k in range(2)]
        said.append(stack.fit(loss, inputs, [labels], order))
    own = [range(9), range(20, 25)]
    for epoch in range(6):
        order = [epoch_batches(len(rows), 4, torch.Generator().manual_seed(9 * epoch)) for rows in own]
        said.append(stack.fit(loss, [inputs[rows] for rows in own], [[labels[rows] for rows in own]], order))
    for at in range(6):
        said.append(stack.step(loss, *(rows[at : at + 10].reshape(2, 5, *rows.shape[1:]) for rows in (inputs, labels))))
    assert torch.equal(inputs, given), "a recording copies batches into tensors of its own"
    return torch.stack(said)


@pytest.mark.parametrize("settings", [{}, {"optimiser": "sgd", "momentum": 0.9}, {"weight_decay": 0.1}])
def test_replayed_steps_are_the_steps(settings: dict[str, Any]) -> None:
    """Whatever the group and the size of its batches; a step that is being recorded is taken once, not twice."""
    plain, replayed = Stack(networks(2), lr=1e-2, **settings), on_a_gpu(networks(2), **settings)
    torch.testing.assert_close(train(replayed), train(plain), rtol=1e-4, atol=1e-6)
    assert replayed.notes == {}
    assert sum(graph.played for graph in Graph.alive) > 20
    for one, other in zip(replayed.modules, plain.modules, strict=True):
        torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=1e-4, atol=1e-5)


def test_modules_draw_anew_in_every_replay() -> None:
    stack = on_a_gpu(networks(1, drop=0.5))
    inputs, labels = torch.rand(1, 8, 1, 6, 6), torch.zeros(1, 8, dtype=torch.long)
    stack._steps.optimisers[0]._rule = type(stack._steps.optimisers[0]._rule)("sgd", 0.0)
    said = [float(stack.step(cross_entropy, inputs, labels)) for _ in range(3 * replay.WORTH)]
    assert sum(graph.played for graph in Graph.alive) == 2 * replay.WORTH
    assert len(set(said)) == len(said)


def test_what_cannot_be_recorded_is_computed_and_the_notes_say_why() -> None:
    def reads(outputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(outputs, labels) * (1.0 if float(outputs.detach().max()) < 1e9 else 0.0)

    plain, asked = Stack(networks(2), lr=1e-2), on_a_gpu(networks(2))
    torch.testing.assert_close(train(asked, reads), train(plain), rtol=1e-4, atol=1e-6)
    assert "not permitted when stream is capturing" in asked.notes["cuda_graph"]
    assert asked._steps._replay._graphs == {}


def test_a_fault_that_shows_up_while_recording_is_raised_as_it_is() -> None:
    stack, calls = on_a_gpu(networks(1)), []

    def breaks(outputs: Tensor, labels: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > replay.WORTH:
            raise LookupError("this network is broken")
        return cross_entropy(outputs, labels)

    inputs, labels = torch.rand(1, 8, 1, 6, 6), torch.zeros(1, 8, dtype=torch.long)
    for _ in range(replay.WORTH):
        stack.step(breaks, inputs, labels)
    with pytest.raises(LookupError, match="this network is broken"):
        stack.step(breaks, inputs, labels)


def test_only_so_many_graphs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "KEPT", 2)
    stack = on_a_gpu(networks(1))
    for size in (4, 5, 6, 4):
        for _ in range(replay.WORTH + 1):
            stack.step(cross_entropy, torch.rand(1, size, 1, 6, 6), torch.zeros(1, size, dtype=torch.long))
    assert len(stack._steps._replay._graphs) == len(Graph.alive) == 2


@pytest.mark.parametrize("mode", ["streams", "loop"])
def test_graphs_go_with_their_stack(mode: Mode) -> None:
    """They hold gigabytes, which must not wait until Python looks for cycles."""
    before = gc.isenabled()
    gc.disable()
    try:
        stack = on_a_gpu(networks(2))
        stack._steps.mode = mode
        train(stack)
        assert len(Graph.alive) > 0
        del stack
        assert len(Graph.alive) == 0
    finally:
        if before:
            gc.enable()


@pytest.mark.parametrize("gamma", [0.0, 0.3])
def test_inversion_networks_are_replayed_too(gamma: float) -> None:
    rng = torch.Generator().manual_seed(0)
    priors = torch.rand(3, 8, 8, 1, generator=rng)
    material = Material(
        torch.rand(2, 20, 4, generator=rng),
        torch.rand(20, 8, 8, 1, generator=rng),
        torch.arange(20),
        priors if gamma else None,
        torch.arange(20) % 3 if gamma else None,
    )
    asked = torch.eye(4)[:3]

    def trained(gpu: bool) -> tuple[InversionStack, Tensor]:
        stack = InversionStack(InversionNetwork(4, (1, 8, 8), 0.01), [1, 2], lr=1e-2, weight_decay=1e-4, device="cpu")
        if gpu:
            stack._replay.__class__ = Always
        said = []
        for epoch in range(6):
            batches = epoch_batches(20, 8, torch.Generator().manual_seed(epoch))
            said.append(stack.fit(material, batches, Objective(gamma=gamma)))
            if gamma:
                stack.fit_to_priors(asked, priors, Objective(gamma=gamma, prior_only=True))
        return stack, torch.stack(said)

    (plain, expected), (replayed, said) = trained(False), trained(True)
    torch.testing.assert_close(said, expected)
    torch.testing.assert_close(replayed.show(asked), plain.show(asked))
    assert replayed.trouble == ""
    assert sum(graph.played for graph in Graph.alive) > 5
