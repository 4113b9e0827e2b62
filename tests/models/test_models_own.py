"""Networks of somebody's own: what makes one, and what is told to those who hand in something else."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedleak
from fedleak.audit.plan import make_plan
from fedleak.audit.registry import load_code
from fedleak.audit.spec import make_spec
from fedleak.commands.ending import ending
from fedleak.errors import FedleakError, RefusedError, SpecError
from fedleak.factories import frozen_as_buffers, made_by
from fedleak.models import build_model
from fedleak.types import Examples, ModelSpec, Weights

NET = nn.Linear(3, 2)


def chosen(width: int = 2) -> nn.Module:
    return nn.Linear(3, width)


@pytest.mark.parametrize("factory", [chosen, partial(nn.Linear, 3, 2), lambda: NET])
def test_whatever_makes_a_module_without_arguments_will_do(factory: Callable[[], nn.Module]) -> None:
    assert tuple(made_by(factory).weight.shape) == (2, 3)  # type: ignore[union-attr]


WRONG: list[tuple[Any, str]] = [
    (nn.Linear, r"model='Linear': is called without arguments .*'in_features'.*lambda: Net\(10\)"),
    (NET, "model='Linear': .* not the network itself"),
    (lambda: 3, "makes a int, not a torch.nn.Module; return the network"),
]


@pytest.mark.parametrize(("factory", "said"), WRONG)
def test_anything_else_is_refused_with_the_way_out(factory: Any, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        build_model(ModelSpec("my_app:Net", factory=factory), (1, 8, 8), 4)
    shown = Examples(torch.rand(4, 1, 8, 8), torch.arange(4))
    with pytest.raises(RefusedError, match=said):
        fedleak.simulate({"a": shown}, shown, model=factory)
    recording = fedleak.simulate({"a": shown}, shown, model="mlp", rounds=1)
    with pytest.raises(RefusedError, match=said):
        fedleak.attack(recording.transcript, "dlm_plus", model=factory, steps=1)


def test_a_name_of_something_that_wants_arguments_is_refused_by_check() -> None:
    with pytest.raises(RefusedError, match=r"model='torch\.nn:Linear': is called without arguments"):
        load_code("torch.nn:Linear", allow=True)
    tables = {"data": {"name": "orl"}, "model": {"name": "torch.nn:Linear"}, "protocol": {"name": "fedavg"}}
    with pytest.raises(SpecError) as caught:
        make_spec(tables, allow_code=True)
    assert "model.name" in {problem.path for problem in caught.value.problems}


def test_what_goes_wrong_inside_is_left_for_its_author_to_see() -> None:
    def broken() -> nn.Module:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        made_by(broken)


PICTURES = Examples(torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(1)), torch.arange(4))


class Flat(nn.Linear):
    def __init__(self, classes: int = 4) -> None:
        super().__init__(16, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs.flatten(1))


class Unknown(Flat):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")


class Pair(Flat):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs), 1  # type: ignore[return-value]


@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Unknown, r"does not take pictures of \(1, 4, 4\) \(KeyError: 'mine' \(test_models_own.py:\d+\)\)"),
        (Pair, "the network gives a tuple for a batch of pictures; return one tensor of class scores alone"),
        (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(4)), "has lazy layers, whose sizes are not known yet"),
    ],
)
def test_a_network_that_cannot_be_used_is_refused_with_the_line(protocol: str, model: Any, said: str) -> None:
    with pytest.raises(FedleakError, match=said):
        fedleak.simulate({"a": PICTURES}, PICTURES, model=model, protocol=protocol)


def test_a_network_with_more_outputs_than_there_are_labels_is_attacked_among_all_of_them() -> None:
    recording = fedleak.simulate({"a": PICTURES}, PICTURES, model=lambda: Flat(7), examples=1)
    assert recording.transcript.setup.classes == 7
    (victim,) = fedleak.attack(recording.transcript, "dlm_plus", steps=2).victims
    assert (victim.status, victim.reason) == ("ok", "")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def net(:", r"cannot be imported \(.*mine.py, line 1\)"),
        ("x = 1\nnet = nobody", r"cannot be imported \(NameError: .*\(mine.py:2\)\)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused_with_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RefusedError, match=said):
        load_code("mine:net", allow=True)


def test_on_the_command_line_what_goes_wrong_inside_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> nn.Module:
        raise ValueError("mine")

    def command(**_given: Any) -> None:
        made_by(broken)

    assert ending(command, []) == 2
    assert re.fullmatch(
        r"fedleak: model: your own code raised ValueError: mine \(test_models_own.py:\d+\)\n", capsys.readouterr().err
    )


class Before(Flat):
    def _get_name(self) -> str:
        return "Net"


class After(Before):
    """The same to look at, and other code."""


def test_other_code_of_what_a_function_makes_is_another_federation() -> None:
    made: list[type[nn.Module]] = [Before]
    tables = {"data": {"name": "orl"}, "protocol": {"name": "fedavg"}}
    spec = make_spec(tables, model=lambda: made[-1]())
    keys = []
    for kind in (Before, After, Before):
        made.append(kind)
        keys.append(make_plan(spec, Path("nowhere"), "cpu").federations[0].key)
    assert keys[0] == keys[2] != keys[1]


class Tuned(nn.Module):
    """A body that stays as it is, and a head that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(16, 8), nn.Linear(8, 3)
        self.body.requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.sigmoid(self.body(inputs.flatten(1))))
        return out


@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
def test_frozen_layers_are_not_trained_and_an_attack_reads_the_rest(protocol: str) -> None:
    pixels = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    clients = {f"c{k}": Examples(pixels[k::2], torch.arange(3)) for k in range(2)}
    recording = fedleak.simulate(
        clients,
        Examples(pixels, torch.arange(6) % 3),
        model=Tuned,
        protocol=protocol,
        rounds=2,
        record="all",
        examples=1,
        lr=0.1,
    )
    first, second = recording.transcript.rounds
    assert isinstance(first.broadcast, Weights)
    assert isinstance(second.broadcast, Weights)
    assert set(first.broadcast.tensors) == {"head.weight", "head.bias"}
    assert torch.equal(first.broadcast.buffers["body.weight"], second.broadcast.buffers["body.weight"])
    assert not torch.equal(first.broadcast.tensors["head.weight"], second.broadcast.tensors["head.weight"])
    finding = fedleak.attack(recording.transcript, "dlm_plus", steps=3)
    assert {victim.status for victim in finding.victims} == {"ok"}


def test_freezing_leaves_the_network_of_its_author_alone() -> None:
    mine = Tuned()
    made = frozen_as_buffers(mine)
    assert [name for name, _ in made.named_parameters()] == ["head.weight", "head.bias"]
    assert len(list(mine.parameters())) == 4
    assert torch.equal(made(torch.ones(1, 1, 4, 4)), mine(torch.ones(1, 1, 4, 4)))
    assert frozen_as_buffers(NET) is NET
