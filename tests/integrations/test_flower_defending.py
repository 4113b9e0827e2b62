"""`defend(...)`: the same numbers as the defense gives by hand, or nothing leaves the client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedleak[flower]'")

from flower_parts import LocalGrid, client_app, first, net, usual
from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from torch import nn

import fedleak
from fedleak.defenses import Clip, Context, Gaussian, Sparsify, chain
from fedleak.errors import RefusedError
from fedleak.integrations.flower import defend, record
from fedleak.seeding import Seeds
from fedleak.types import Transcript, Weights


def federation(out: Path, *mods: Any, rounds: int = 2, **more: Any) -> Transcript:
    strategy = record(FedAvg(fraction_evaluate=0.0), out=out, model=net)
    strategy.start(LocalGrid(client_app(mods=list(mods), **more)), first(), num_rounds=rounds)
    return fedleak.load_transcript(out)


def sent(transcript: Transcript, index: int, client: int) -> Weights:
    payload = transcript.round(index).received[client].payload
    assert isinstance(payload, Weights)
    return payload


def test_a_mod_sends_what_the_defenses_make_of_the_message(tmp_path: Path) -> None:
    plain = federation(tmp_path / "plain", rounds=1)
    defenses = (Clip(norm=0.01), Sparsify(fraction=0.5), Gaussian(sigma=0.1))
    defended = federation(tmp_path / "defended", defend(*defenses, seed=7), rounds=1)
    broadcast = plain.round(1).broadcast
    assert isinstance(broadcast, Weights)
    for client in (0, 1):
        before, after = sent(plain, 1, client), sent(defended, 1, client)
        rng = Seeds(7).generator("flower", "arrays", "round", 1, "client", client, "use", 0)
        by_hand = chain(*defenses).apply(before, Context(stage="message", broadcast=broadcast), rng)
        for name, value in by_hand.tensors.items():
            assert torch.equal(after.tensors[name], value)
        for name, value in before.buffers.items():
            assert torch.equal(after.buffers[name], value), "running statistics leave as they are"


def test_noise_is_fresh_per_round_and_client_and_the_same_per_seed(tmp_path: Path) -> None:
    runs = [federation(tmp_path / str(n), defend(Gaussian(sigma=1.0), seed=s)) for n, s in enumerate((3, 3, 4))]
    noise = [
        sent(run, index, client).tensors["4.weight"] - run.round(index).broadcast.tensors["4.weight"]  # type: ignore[union-attr]
        for run in runs
        for index in (1, 2)
        for client in (0, 1)
    ]
    assert all(torch.equal(noise[at], noise[at + 4]) for at in range(4))
    different = [noise[at] for at in (0, 1, 2, 3, 8)]
    for at, one in enumerate(different):
        assert all((one - other).abs().min() > 1e-4 for other in different[at + 1 :])


def test_without_a_seed_nobody_can_draw_the_noise_again(tmp_path: Path) -> None:
    one, two = (federation(tmp_path / n, defend(Gaussian(sigma=1.0)), rounds=1) for n in "ab")
    assert not torch.equal(sent(one, 1, 0).tensors["1.bias"], sent(two, 1, 0).tensors["1.bias"])


def test_a_round_asked_for_twice_gets_other_noise(tmp_path: Path) -> None:
    class Repeating(FedAvg):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            return super().configure_train(1, arrays, config, grid)

    recorder = record(Repeating(fraction_evaluate=0.0), out=tmp_path / "r", model=net)
    app = client_app(mods=[defend(Gaussian(sigma=1.0), seed=1)])
    recorder.start(LocalGrid(app), first(), num_rounds=2)
    seen = fedleak.load_transcript(tmp_path / "r")
    noise = [sent(seen, n, 0).tensors["1.bias"] - seen.round(n).broadcast.tensors["1.bias"] for n in (1, 2)]  # type: ignore[union-attr]
    assert (noise[0] - noise[1]).abs().max() > 0.1


def test_no_defense_changes_nothing(tmp_path: Path) -> None:
    plain, same = federation(tmp_path / "a"), federation(tmp_path / "b", defend())
    assert torch.equal(sent(plain, 2, 1).tensors["1.weight"], sent(same, 2, 1).tensors["1.weight"])


def test_what_cannot_be_defended_is_not_sent(tmp_path: Path) -> None:
    def quantised(module: nn.Module, samples: int, partition: int, index: int) -> RecordDict:
        state = {name: (127 * value).to(torch.int8) for name, value in module.state_dict().items()}
        return RecordDict({"arrays": ArrayRecord(state), "metrics": usual(module, samples)["metrics"]})

    def renamed(module: nn.Module, samples: int, partition: int, index: int) -> RecordDict:
        state = {f"x.{name}": value for name, value in module.state_dict().items()}
        return RecordDict({"arrays": ArrayRecord(state), "metrics": usual(module, samples)["metrics"]})

    def another(module: nn.Module, samples: int, partition: int, index: int) -> RecordDict:
        made = usual(module, samples)
        return RecordDict({"arrays": made["arrays"], "activations": made["arrays"], "metrics": made["metrics"]})

    for content, reason in ((quantised, "whole numbers"), (renamed, "those that were"), (another, "'activations'")):
        with pytest.raises(RefusedError, match=reason):
            federation(tmp_path / reason.strip("'"), defend(Gaussian(sigma=0.1), seed=0), content=content)


def test_the_package_opens_without_flower_and_says_what_to_install(tmp_path: Path) -> None:
    fedleak.save_transcript(federation(tmp_path / "r", rounds=1), tmp_path / "copy")
    code = """
import importlib.metadata, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("flwr", "ray", "opacus"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
version = importlib.metadata.version
def gone(name):
    if name == "flwr":
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)
importlib.metadata.version = gone
import fedleak, fedleak.integrations, fedleak.integrations.flower as flower
from fedleak.errors import RefusedError
for use in (lambda: flower.replay(sys.argv[1]), lambda: flower.Deployment(".", [flower.Node()])):
    try:
        use()
    except RefusedError as problem:
        assert "pip install 'fedleak[flower]'" in str(problem), problem
    else:
        raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "copy")], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
