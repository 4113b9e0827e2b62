"""FedMD and DS-FL on the Message API: what is exchanged, what is agreed on, what is recorded."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedleak[flower]'")

from flower_parts import LocalGrid
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

import fedleak
from fedleak.defenses import Gaussian, LabelOnly
from fedleak.errors import RefusedError
from fedleak.integrations.flower import Deployment, Node, defend, exchange, read_request, reply_predictions
from fedleak.integrations.flower.arrays import array_record
from fedleak.integrations.flower.logits import consensus
from fedleak.types import Predictions, PublicSet

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_fedmd"
PUBLIC = PublicSet(torch.rand(6, 1, 2, 2, generator=torch.Generator().manual_seed(0)))


def answering(change: Any = None) -> ClientApp:
    """Client k says k on every class plus the number of the example, in every round."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        asked, number = read_request(message), int(context.node_config["partition-id"])
        values = asked.index[:, None].float() + torch.arange(3.0) * number
        if change is not None:
            return change(message, asked, number, values)
        return reply_predictions(message, values, samples=5 + number)

    return app


def run(out: Path, app: ClientApp | None = None, **more: Any) -> Predictions:
    given = {"public": PUBLIC, "classes": 3, "rounds": 2, "examples": 4, "out": out, **more}
    return exchange(LocalGrid(app or answering()), **given)


def test_every_prediction_and_every_consensus_is_recorded(tmp_path: Path) -> None:
    last = run(tmp_path / "r")
    seen = fedleak.load_transcript(tmp_path / "r")
    assert seen.setup.public is not None
    assert torch.equal(seen.setup.public.inputs, PUBLIC.inputs)
    one, two = seen.rounds
    assert one.broadcast is None
    for number, message in enumerate(one.received):
        assert isinstance(message.payload, Predictions)
        assert message.disclosed == {"samples": 5 + number}
        wanted = message.payload.index[:, None].float() + torch.arange(3.0) * number
        assert torch.equal(message.payload.values, wanted)
    assert isinstance(two.broadcast, Predictions)
    both = [m.payload.values for m in one.received]  # type: ignore[union-attr]
    assert torch.equal(two.broadcast.values, (both[0] + both[1]) / 2)
    assert torch.equal(last.index, two.received[0].payload.index)  # type: ignore[union-attr]
    assert one.received[0].payload.index.tolist() != two.received[0].payload.index.tolist()  # type: ignore[union-attr]


def test_a_client_is_told_the_consensus_of_the_round_before() -> None:
    told: dict[int, Any] = {}

    def remember(message: Any, asked: Any, number: int, values: Any) -> Any:
        told[asked.round] = asked.consensus
        return reply_predictions(message, values, samples=1)

    exchange(LocalGrid(answering(remember)), public=PUBLIC, classes=3, rounds=2)
    assert told[1] is None
    assert torch.equal(told[2].values, torch.arange(6.0)[:, None] + torch.tensor([0.0, 0.5, 1.0]))


def test_dsfl_sharpens_the_mean() -> None:
    """By hand: the mean of (0.8, 0.2) and (0.4, 0.6) is (0.6, 0.4); at 0.1 their odds are e^2 to 1."""
    index = torch.tensor([0])
    sent = [Predictions(torch.tensor([[a, 1 - a]]), "probabilities", index) for a in (0.8, 0.4)]
    sharp = consensus(sent, "dsfl", 0.1).values[0]
    assert float(sharp[0] / sharp[1]) == pytest.approx(torch.e**2, rel=1e-4)
    assert torch.allclose(consensus(sent, "fedmd").values, torch.tensor([[0.6, 0.4]]))


def test_a_client_that_fails_is_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(message: Any, asked: Any, number: int, values: Any) -> Any:
        if number == 0 and asked.round == 1:
            return Message(Error(2, "no"), reply_to=message)
        if number == 0:
            return Message(RecordDict(), reply_to=message)
        return reply_predictions(message, values[: 3 if asked.round == 3 else None], samples=1)

    run(tmp_path / "r", answering(fail), rounds=3)
    assert [len(r.received) for r in fedleak.load_transcript(tmp_path / "r").rounds] == [1, 1, 0]
    said = [r.getMessage() for r in caplog.records if r.levelname == "WARNING" and r.name == "fedleak.flower"]
    assert "node-101 left out: replied with error 2" in said[0]
    assert "replied without predictions" in said[1]
    assert "shape (3, 3), asked for (4, 3)" in said[2]


@pytest.fixture
def defended_app(tmp_path: Path) -> Path:
    """The example as its README defends it."""
    shutil.copytree(EXAMPLE, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    for name, body in re.findall(r"```diff\n--- (\S+)\n(.*?)```", text, flags=re.DOTALL):
        lines, file = body.splitlines(keepends=True), tmp_path / "app" / name
        old, new = ("".join(line[1:] for line in lines if line[0] in signs) for signs in (" -", " +"))
        assert file.read_text().count(old) == 1, f"{name}: the README's diff does not fit"
        file.write_text(file.read_text().replace(old, new))
    return tmp_path / "app"


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["fedmd", "dsfl"])
def test_flower_fedmd_example_as_a_deployment(protocol: str, defended_app: Path) -> None:
    """FedMD with the README's defense: the client's model must reach the mod through processes that end every round."""
    nodes = [Node({"partition-id": number, "num-partitions": 2}) for number in range(2)]
    with Deployment(defended_app if protocol == "fedmd" else EXAMPLE, nodes) as running:
        running.run({"num-server-rounds": 2, "protocol": protocol})
        seen = fedleak.load_transcript(running.folder / "recording")
        assert [len(r.received) for r in seen.rounds] == [2, 2]
        values = seen.rounds[1].received[0].payload.values  # type: ignore[union-attr]
    assert values.shape == (20, 4)
    assert seen.setup.disclosed == {"protocol": protocol}
    if protocol == "dsfl":
        assert torch.allclose(values.sum(dim=1), torch.ones(20), atol=1e-5)


def test_flower_fedmd_example_defended_moves_one_class(
    defended_app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process: the README's `directed` changes one class of all pictures and no other."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    pictures = importlib.import_module("flower_fedmd.task").public()
    for name, folder in (("plain", EXAMPLE), ("defended", defended_app)):
        spec = importlib.util.spec_from_file_location(name, folder / "flower_fedmd" / "client_app.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        grid = LocalGrid(module.app)
        given = {"public": PublicSet(pictures), "classes": 4, "examples": 20, "clients": 2}
        exchange(grid, rounds=1, out=tmp_path / name, **given)  # type: ignore[arg-type]
    for honest, sent in zip(values_in(tmp_path / "plain", 1), values_in(tmp_path / "defended", 1), strict=True):
        moved = (sent - honest).abs() > 1e-6
        assert int(moved.any(dim=0).sum()) == 1
        assert moved.any(dim=1).all()


# --- defended ---------------------------------------------------------------------------------------------------


def defended(*defenses: Any, seed: int | None = 4, change: Any = None) -> ClientApp:
    app = ClientApp(mods=[defend(*defenses, seed=seed)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        asked, number = read_request(message), int(context.node_config["partition-id"])
        values = asked.index[:, None].float() + torch.arange(3.0) * number
        return reply_predictions(message, values, samples=5) if change is None else change(message, values)

    return app


def values_in(recording: Path, round_index: int) -> list[torch.Tensor]:
    return [m.payload.values for m in fedleak.load_transcript(recording).round(round_index).received]  # type: ignore[union-attr]


def test_predictions_leave_rounded_and_noised(tmp_path: Path) -> None:
    run(tmp_path / "plain")
    run(tmp_path / "noised", defended(Gaussian(sigma=0.5)))
    run(tmp_path / "same", defended(Gaussian(sigma=0.5)))
    run(tmp_path / "fresh", defended(Gaussian(sigma=0.5), seed=None))
    plain, noised = values_in(tmp_path / "plain", 1), values_in(tmp_path / "noised", 1)
    moved = torch.stack(noised) - torch.stack(plain)
    assert 0.2 < float(moved.std()) < 0.9
    assert not torch.equal(moved[0], moved[1]), "each client has noise of its own"
    later = torch.stack(values_in(tmp_path / "noised", 2)) - torch.stack(values_in(tmp_path / "plain", 2))
    assert not torch.equal(moved, later), "and every round"
    assert all(map(torch.equal, noised, values_in(tmp_path / "same", 1)))
    assert not torch.equal(noised[0], values_in(tmp_path / "fresh", 1)[0])
    run(tmp_path / "labels", defended(LabelOnly()))
    told = values_in(tmp_path / "labels", 1)[1]
    assert told.argmax(dim=-1).tolist() == [2, 2, 2, 2]
    assert len(told.unique()) == 2, "one value for the label and one for all the others"


def test_what_cannot_be_defended_is_not_sent(tmp_path: Path) -> None:
    def with_weights(message: Message, values: torch.Tensor) -> Message:
        content = RecordDict({"predictions": array_record({"values": values, "weights": torch.ones(2)})})
        return Message(content, reply_to=message)

    app = defended(Gaussian(sigma=0.5), change=with_weights)
    with pytest.raises(RefusedError, match="the reply carries values, weights"):
        app(asking(), LocalGrid(app).contexts[101])


def asking() -> Message:
    config = {"server-round": 1, "public-index": [0, 1], "scale": "logits"}
    return Message(RecordDict({"config": ConfigRecord(config)}), dst_node_id=101, message_type="train", group_id="1")
