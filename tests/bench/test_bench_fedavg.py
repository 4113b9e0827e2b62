"""`fedleak bench fedavg`: the rivals solve the same problem, and the output is what the contract says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from command_line import fedleak
from fedleak.attacks.simulation.unroll import Simulation
from fedleak.bench import fedavg
from fedleak.bench.fedavg_rivals import Dummies, eager_client, jax_client
from fedleak.learning.functional import Network
from fedleak.models import build_model
from fedleak.types import ModelSpec


def small() -> tuple[torch.nn.Module, Dummies]:
    rng = torch.Generator().manual_seed(0)
    module = build_model(ModelSpec("cnn_femnist", {"widths": [3, 4], "hidden": 5}), (2, 8, 8), 3, rng)
    weights = Network(module).initial()
    targets = {name: torch.randn(2, *value.shape, generator=rng) for name, value in weights.items()}
    inputs, labels = torch.randn(2, 4, 3, 2, 8, 8, generator=rng), torch.randint(0, 3, (2, 4, 3), generator=rng)
    return module, Dummies(inputs, labels, weights, targets)


def test_the_eager_rival_has_our_slope() -> None:
    module, given = small()
    engine = Simulation(Network(module), fedavg.LOSS, given.weights, lr=0.01, steps_per_epoch=2)
    _, ours = engine(given.inputs, given.labels, None, fedavg._squared, list(given.targets.values()))
    theirs = torch.stack([eager_client(module, fedavg.LOSS, 0.01, given, client) for client in (0, 1)])
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max()))


def test_the_jax_rival_has_the_eager_ones_slope() -> None:
    pytest.importorskip("jax", reason="the JAX rival is measured where JAX is installed")
    module, given = small()
    run = jax_client(0.01, given, clients=2)
    assert run is not None
    for client in (0, 1):
        _, found = run(client)
        theirs = torch.from_numpy(np.array(found)).permute(0, 1, 4, 2, 3)
        expected = eager_client(module, fedavg.LOSS, 0.01, given, client)
        torch.testing.assert_close(theirs, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_bench_fedavg_prints_ratios_and_growth(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = fedavg.Sizes(2, 2, 1, 2, 2, (1,), (2,), (("femnist", "tf32"),))
    monkeypatch.setattr(fedavg, "SIZES", {"cpu": tiny})
    answer = fedleak(capsys, monkeypatch, "bench", "fedavg", "--device", "cpu", "--json")
    assert answer.code == 0, answer.err
    assert {"name", "device", "ratios", "seconds", "peak_memory", "floor_seconds"} <= set(answer.json)
    assert set(answer.json["ratios"]) == {"vs_eager", "vs_eager_1", "vs_jax"}
    assert answer.json["ratios"]["vs_eager"] > 0
    assert answer.json["conditions"]["engine"] == "written out"
    wanted = {"ours_2", "eager_2", "ours_1", "eager_1", "clients_1", "unrolled_steps_2", "femnist_tf32_2"}
    assert wanted <= set(answer.json["seconds"])
    assert all(seconds > 0 for seconds in answer.json["seconds"].values())
    assert answer.json["conditions"]["unrolled_steps"] == 1
    assert answer.json["floor_seconds"] > 0
