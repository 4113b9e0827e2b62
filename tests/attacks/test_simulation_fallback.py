"""Our kernels are tried where they may run; where they cannot, the next way takes over and the reason is said."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedleak.attacks.simulation import choose_steps
from fedleak.attacks.simulation.conv_layers import layers_of
from fedleak.attacks.simulation.tiled_steps import TiledSteps
from fedleak.attacks.simulation.unroll import Simulation
from fedleak.learning.functional import Network, loss_named
from fedleak.models import build_model
from fedleak.types import ModelSpec

LOSS, LR, SHAPE = loss_named("cross_entropy"), 0.05, (1, 8, 8)
FUSED = "fedleak.attacks.simulation.fused_steps"


@pytest.fixture(autouse=True)
def _kernels_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_steps, "_may_fuse", lambda _images: True)


def network() -> Network:
    spec = ModelSpec("cnn_femnist", {"widths": [3, 4], "hidden": 6})
    return Network(build_model(spec, SHAPE, 5, torch.Generator().manual_seed(0)))


def run(net: Network) -> tuple[Simulation, Tensor]:
    """Two clients, two epochs of two steps, the last batch of each with one image of two."""
    rng = torch.Generator().manual_seed(1)
    inputs = torch.randn(2, 4, 2, *SHAPE, generator=rng)
    labels = torch.randint(0, 5, (2, 4, 2), generator=rng)
    mask = torch.tensor([[1, 1], [1, 0]]).repeat(2, 2, 1)

    def squared(update: dict[str, Tensor], _given: Sequence[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        values = torch.stack([one.square().flatten(1).sum(dim=1) for one in update.values()]).sum(dim=0)
        return values, {name: 2 * one for name, one in update.items()}

    simulation = Simulation(net, LOSS, net.initial(), lr=LR, steps_per_epoch=2)
    return simulation, simulation(inputs, labels, mask, squared)[1]


def tiled(net: Network) -> Any:
    layers = layers_of(net.module, LOSS)
    assert layers is not None
    return TiledSteps(layers, net.initial(), SHAPE, LR)


def test_a_whole_run_in_our_kernels_has_the_slopes_of_the_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("here kernels are compiled, for a GPU, and these pictures are on the CPU")
    simulation, found = run(network())
    assert (simulation.engine, simulation.unfused) == ("fused", "")
    monkeypatch.setattr(choose_steps, "_may_fuse", lambda _images: False)
    simulation, expected = run(network())
    assert (simulation.engine, simulation.unfused) == ("written out", "")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_without_a_triton_that_can_be_imported_the_tiles_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, FUSED, None)  # Python then refuses to import it
    simulation, found = run(network())
    assert simulation.engine == "written out"
    assert simulation.unfused.startswith("no kernels of our own: ModuleNotFoundError")
    monkeypatch.setattr(choose_steps, "_may_fuse", lambda _images: False)
    assert torch.equal(found, run(network())[1])


def test_kernels_that_cannot_be_compiled_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Uncompiled:
        def __init__(self, *_given: Any) -> None:
            self.load = tiled(network()).load

        def forward(self, *_given: Any) -> list[Tensor]:
            raise RuntimeError("Failed to find C compiler.\nPlease specify via CC environment variable.")

    monkeypatch.setitem(sys.modules, FUSED, SimpleNamespace(FusedSteps=Uncompiled))
    simulation, _ = run(network())
    assert simulation.engine == "written out"
    assert simulation.unfused == "no kernels of our own: RuntimeError: Failed to find C compiler."


class WrongSlope(TiledSteps):
    def backward(self, *given: Any) -> Tensor:
        return 1.1 * super().backward(*given)


class WrongStep(TiledSteps):
    def forward(self, state: list[Tensor], *given: Any) -> list[Tensor]:
        kept = super().forward(state, *given)
        state[1].mul_(1.001)
        return kept


class WrongAdjoint(TiledSteps):
    def backward(self, state: list[Tensor], adjoint: list[Tensor], *given: Any) -> Tensor:
        slope = super().backward(state, adjoint, *given)
        adjoint[1].mul_(1.001)
        return slope


@pytest.mark.parametrize("wrong", [WrongSlope, WrongStep, WrongAdjoint])
def test_kernels_that_compute_something_else_are_left(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, FUSED, SimpleNamespace(FusedSteps=wrong))
    simulation, _ = run(network())
    assert simulation.engine == "written out"
    assert simulation.unfused == "no kernels of our own: its fused derivatives are wrong"


def test_a_layer_too_large_for_32_bits_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two pictures of 8 x 8 with 3 channels behind the first convolution: 384 numbers, the most there are.
    monkeypatch.setattr(choose_steps, "INDICES", 385)
    monkeypatch.setitem(sys.modules, FUSED, SimpleNamespace(FusedSteps=TiledSteps))
    assert run(network())[0].engine == "fused"
    monkeypatch.setattr(choose_steps, "INDICES", 384)
    simulation, _ = run(network())
    assert simulation.engine == "written out"
    assert "384 numbers" in simulation.unfused


def test_a_gpu_without_tf32_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Picture(SimpleNamespace):
        is_cuda, device = True, "cuda"

    layers = layers_of(network().module, LOSS)
    assert layers is not None
    monkeypatch.setitem(sys.modules, FUSED, None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 5))
    with pytest.raises(choose_steps.RefusedError, match=r"capability 8\.0 or more, and Tesla T4 has less"):
        choose_steps._fused(layers, network().initial(), SHAPE, LR, batch=Picture())  # type: ignore[arg-type]


def test_a_network_that_is_sure_of_its_labels_is_still_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_steps, "_may_fuse", lambda _images: False)
    net, labels = network(), torch.zeros(2, dtype=torch.long)
    with torch.no_grad():
        *_, bias = net.module.parameters()
        bias[0] = 16.8  # what is left of the slope by the scores, 5e-8, is as small as float32 rounds 1
    choice = choose_steps.choose(net, LOSS, net.initial(), LR, torch.zeros(2, *SHAPE), labels)
    assert (choice.engine, choice.fallback) == ("written out", "")
