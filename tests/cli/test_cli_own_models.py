"""`fedleak attack RECORDING --model my_app:Net --allow-code` on networks as people write them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from command_line import Answer, fedleak
from fedleak.audit.truths import save_truth
from fedleak.learning.own_models import attackable
from fedleak.transcript import save_transcript
from fedleak.types import (
    Examples,
    Message,
    ModelSpec,
    Payload,
    Predictions,
    PublicSet,
    Round,
    Setup,
    Transcript,
    Truth,
    Weights,
)

SOURCE = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    '''A small ResNet: frozen stem, BatchNorm, a skip connection, functional dropout.'''
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1).requires_grad_(False)
        self.conv1, self.norm1 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.norm2 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.head = nn.Linear(6 * 64, 4)
    def forward(self, x):
        x = torch.tanh(self.stem(x))
        x = torch.tanh(x + self.norm2(self.conv2(torch.tanh(self.norm1(self.conv1(x))))))
        return self.head(F.dropout(x.flatten(1), 0.3, self.training))

def Pooled():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
"""
PICTURES = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(3))

Run = Callable[..., Answer]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("my_app").mkdir()
    Path("my_app/__init__.py").touch()
    Path("my_app/task.py").write_text(SOURCE)
    yield lambda *arguments: fedleak(capsys, monkeypatch, *arguments)
    for name in ("my_app", "my_app.task"):
        sys.modules.pop(name, None)


def own() -> Any:
    import importlib

    return importlib.import_module("my_app.task").Net


def recorded(
    *, kind: torch.dtype = torch.float32, running: bool = False, shape: tuple[int, ...] = (1, 8, 8), classes: int = 4
) -> Transcript:
    """Two clients, one picture each, one step; a state_dict in `kind`, backwards, frozen layers among the weights."""
    torch.manual_seed(0)
    state = own()().state_dict()

    def weights(values: dict[str, Tensor]) -> Weights:
        cast = {n: v.detach().to(kind) if v.is_floating_point() else v.clone() for n, v in values.items()}
        backwards = dict(reversed(list(cast.items())))
        buffers = {n: v for n, v in backwards.items() if "running" in n or "tracked" in n}
        return Weights({n: v for n, v in backwards.items() if n not in buffers}, buffers)

    messages = []
    for number in range(2):
        module = attackable(own(), batchnorm="running" if running else "batch")()
        module.load_state_dict(state)
        F.cross_entropy(module(PICTURES[number : number + 1]), torch.tensor([number])).backward()
        torch.optim.SGD(module.parameters(), lr=0.1).step()
        messages.append(Message(f"c{number}", weights(module.state_dict()), {"samples": 1}))
    setup = Setup(ModelSpec("my_app.task:Net"), shape, classes)
    return Transcript(setup, (Round(1, weights(state), tuple(messages)),))


def stored(transcript: Transcript) -> tuple[Path, Path]:
    examples = Examples(PICTURES, torch.tensor([0, 1]))
    used = {(1, f"c{n}"): torch.tensor([n]) for n in range(2)}
    Path("truth").mkdir()
    save_truth(Truth(examples, ("c0", "c1"), used, examples), Path("truth"))
    save_transcript(transcript, Path("recording"))
    return Path("recording"), Path("truth")


MODEL = ("--model", "my_app.task:Net", "--allow-code", "--attack", "dlm_plus", "--json", "--quiet")


@pytest.mark.parametrize("running", [False, True])
def test_a_resnet_with_everything_people_write(run: Run, running: bool) -> None:
    recording, truth = stored(recorded(running=running))
    mode = ("--batchnorm", "running") if running else ()
    answer = run("attack", recording, *MODEL, "--truth", truth, *mode, "--set", "steps=40")
    assert answer.code == 0, answer.err
    assert min(row["scores"]["psnr"][0] for row in answer.json["rows"]) > 30


def test_half_precision_is_read(run: Run) -> None:
    recording, truth = stored(recorded(kind=torch.float16))
    answer = run("attack", recording, *MODEL, "--truth", truth, "--set", "steps=15")
    assert answer.code == 0, answer.err
    assert [row["status"] for row in answer.json["rows"]] == ["ok", "ok"]


def changed(transcript: Transcript, sender: str, payload: Payload, **disclosed: Any) -> Transcript:
    seen = transcript.round(1)
    received = tuple(
        replace(m, payload=payload, disclosed={**m.disclosed, **disclosed}) if m.sender == sender else m
        for m in seen.received
    )
    return replace(transcript, rounds=(replace(seen, received=received),))


def quantised(transcript: Transcript, sender: str) -> tuple[Weights, float]:
    """The update of one client as whole numbers of 16 bits."""
    seen = transcript.round(1)
    start = seen.broadcast
    sent = next(m.payload for m in seen.received if m.sender == sender)
    assert isinstance(start, Weights)
    assert isinstance(sent, Weights)
    update = {name: value - start.tensors[name] for name, value in sent.tensors.items()}
    scale = max(float(value.abs().max()) for value in update.values()) / 32767
    return Weights({n: (v / scale).round().to(torch.int16) for n, v in update.items()}, sent.buffers), scale


def test_quantised_updates_are_decoded_or_refused_one_by_one(run: Run) -> None:
    seen = recorded()
    first, scale = quantised(seen, "c0")
    seen = changed(seen, "c0", first, quantisation={"scale": scale, "of": "update"})
    seen = changed(seen, "c1", quantised(seen, "c1")[0])
    recording, truth = stored(seen)
    answer = run("attack", recording, *MODEL, "--truth", truth, "--set", "steps=30")
    one, two = answer.json["rows"]
    assert one["scores"]["psnr"][0] > 25
    assert two["status"] == "refused"
    assert "int16: a quantised update" in two["reason"]


def test_the_size_of_the_pictures_is_asked_of_the_network_or_of_the_user(run: Run) -> None:
    recording, truth = stored(recorded(shape=(), classes=9))
    answer = run("attack", recording, *MODEL, "--truth", truth, "--set", "steps=1")
    assert answer.code == 0, answer.err
    wrong = run("attack", recording, *MODEL, "--input-shape", "1,9,9", "--set", "steps=1")
    assert wrong.code == 2
    assert "does not take such pictures" in wrong.err
    assert "C,H,W" in run("attack", recording, *MODEL, "--input-shape", "8x8").err
    assert "tells 4 classes apart" in run("attack", recording, *MODEL, "--classes", 7).err
    assert "batch or running" in run("attack", recording, *MODEL, "--batchnorm", "none").err


def test_a_network_that_takes_any_size_needs_the_users_word(run: Run) -> None:
    import importlib

    state = importlib.import_module("my_app.task").Pooled().state_dict()
    moved = Weights({name: value + 0.01 for name, value in state.items()})
    setup = Setup(ModelSpec("unknown"), (), 3)
    seen = Transcript(setup, (Round(1, Weights(dict(state)), (Message("c0", moved, {"samples": 1}),)),))
    recording, _ = stored(seen)
    model = ("--model", "my_app.task:Pooled", *MODEL[2:], "--set", "steps=1", "--no-confidence")
    answer = run("attack", recording, *model)
    assert answer.code == 2
    assert "--input-shape C,H,W" in answer.err
    answer = run("attack", recording, *model, "--input-shape", "1,6,6")
    assert answer.code == 0, answer.err


def test_another_network_is_refused_with_the_names(run: Run) -> None:
    recording, _ = stored(recorded())
    answer = run("attack", recording, "--model", "my_app.task:Pooled", *MODEL[2:])
    assert answer.code == 2
    assert "recorded from another network than Sequential" in answer.err
    assert "not expected: head.bias" in answer.err


def test_without_the_truth_a_row_says_how_far_to_believe_it(run: Run) -> None:
    recording, _ = stored(recorded())
    answer = run("attack", recording, *MODEL, "--set", "steps=20", "--set", "restarts=0", "--out", "blind")
    assert answer.code == 0, answer.err
    for row in answer.json["rows"]:
        assert row["scores"] == {}
        start, noise = row["baselines"]["other_start"], row["baselines"]["noise_update"]
        assert start["believed"] == [1.0]
        assert start["agreement"][0] > 20
        assert row["objective"] < 0.1 * noise["objective"][0]
        said = json.loads((Path("blind/artifacts") / row["artifacts"]["confidence"]).read_text())
        assert said["other_start"] == start
        assert said["unexplained"][0] == pytest.approx(row["objective"] / noise["objective"][0])


def test_without_the_truth_and_without_the_wish_there_is_only_the_objective(run: Run) -> None:
    recording, _ = stored(recorded())
    plain = [word for word in MODEL if word not in ("--json", "--quiet")]
    answer = run("attack", recording, *plain, "--set", "steps=2", "--no-confidence")
    assert "no score" in answer.out
    assert "believed" not in answer.out.lower()
    shown = run("attack", recording, *plain, "--set", "steps=2", "--out", "sure")
    assert "believed" in shown.out


def predicted(model: str = "mlp") -> Path:
    """Three clients' predictions of 3 classes on 6 public pictures, over two rounds; the second is of fewer."""
    public = PublicSet(torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(5)))

    def sent(count: int) -> tuple[Message, ...]:
        values = torch.softmax(torch.randn(count, 3, generator=torch.Generator().manual_seed(count)), dim=-1)
        return tuple(Message(name, Predictions(values, "probabilities", torch.arange(count))) for name in "abc")

    setup = Setup(model=ModelSpec(model), input_shape=(1, 8, 8), classes=3, public=public)
    save_transcript(Transcript(setup, (Round(1, None, sent(6)), Round(2, None, sent(4)))), "predicted")
    return Path("predicted")


STEAL = ("--set", "epochs=1", "--set", "network=federation", "--json")


def test_a_network_of_ones_own_imitates_if_it_has_as_many_outputs_as_clients_predict(run: Run) -> None:
    recording = predicted()
    answer = run("attack", recording, "--attack", "msa", "--model", "my_app.task:Pooled", "--allow-code", *STEAL)
    assert answer.code == 0, answer.err
    assert [row["status"] for row in json.loads(answer.out)["rows"]] == ["ok"] * 3
    answer = run("attack", recording, "--attack", "msa", "--model", "my_app.task:Net", "--allow-code", *STEAL)
    assert answer.code == 2
    assert "gives 4 numbers for a picture, but the clients of this recording predict 3 classes" in answer.err


def test_predictions_that_change_length_between_rounds_are_an_error_for_an_attack_with_history(run: Run) -> None:
    answer = run("attack", predicted(), "--attack", "adamsa", *STEAL)
    assert answer.code == 2
    assert "rounds 1 and 2 hold predictions on different public examples (6 and 4)" in answer.err
    assert "use T0 = 0 (msa)" in answer.err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--input-shape", "3,9,9"), "input_shape=(3, 9, 9): the public pictures are (1, 8, 8); leave --input-shape"),
        (("--set", 'network={name="adamsa_cnn",widths=[2,2,2,2]}'), "pictures of 8x8 are too small for it"),
    ],
)
def test_a_copy_that_does_not_fit_the_public_pictures_is_refused(run: Run, given: tuple[str, str], said: str) -> None:
    answer = run("attack", predicted(), "--attack", "msa", *given, "--json")
    assert (answer.code, answer.json["exit_code"]) == (2, 2)
    assert said in answer.json["error"]


@pytest.mark.parametrize(
    ("first", "then"), [("network=mlp", "network.hidden=8"), ("network.widths=[4]", "network.widths.x=2")]
)
def test_a_parameter_inside_what_is_no_table_is_refused(run: Run, first: str, then: str) -> None:
    answer = run("attack", predicted(), "--attack", "msa", "--set", first, "--set", then)
    assert answer.code == 2
    assert f"--set {then.partition('=')[0]}: leads nowhere; give the whole table at once: --set 'network=" in answer.err


def test_a_recorded_network_of_ones_own_is_asked_for_where_the_attack_needs_it(run: Run) -> None:
    """A copy is a network that the attacker chooses; what cannot be read is refused for that."""
    recording = predicted("my_app.task:Net")
    copied = run("attack", recording, "--attack", "msa", "--set", "network=mlp", "--set", "epochs=1", "--json")
    assert copied.code == 0, copied.err
    asked = run("attack", recording, "--attack", "msa", "--set", "network=federation")
    assert (asked.code, "give it with --model" in asked.err) == (2, True)
    save_transcript(recorded(), Path("weights"))
    unread = run("attack", Path("weights"), "--attack", "msa")
    assert (unread.code, "this attack reads predictions" in unread.err) == (2, True)
    assert "--model" in run("attack", Path("weights"), "--attack", "dlm_plus").err
