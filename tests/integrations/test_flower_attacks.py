"""Every attack by its name, from the plain command line, on what a Flower server recorded: weights and predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedleak[flower]'")

from flower_parts import LocalGrid, client_app, config, first, plain
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedleak
from command_line import fedleak as command
from fedleak.audit.registry import registry
from fedleak.errors import RefusedError
from fedleak.integrations.flower import exchange, read_request, record, reply_predictions
from fedleak.types import Predictions, PublicSet, Weights

PUBLIC = PublicSet(torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(0)))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As most apps are: the batch size is the client's own affair, the server does not send it."""
    out = tmp_path_factory.mktemp("weights") / "recording"
    strategy = record(FedAvg(fraction_evaluate=0.0), out=out, model=plain)
    given = config(learning_rate=0.1, local_epochs=1)
    strategy.start(LocalGrid(client_app(plain)), first(plain), num_rounds=2, train_config=given)
    return out


@pytest.fixture(scope="module")
def predictions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    app, out = ClientApp(), tmp_path_factory.mktemp("predictions") / "recording"

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.manual_seed(int(context.node_config["partition-id"]))
        with torch.no_grad():
            return reply_predictions(message, plain()(PUBLIC.inputs[read_request(message).index]), samples=5)

    exchange(LocalGrid(app), public=PUBLIC, classes=3, rounds=2, out=out)
    return out


MODEL = ("--model", "flower_parts:plain", "--allow-code")
FACTS = {
    "dlg": ("batch_size=3",),
    "idlg": ("batch_size=1", "samples=1"),
    "class_inversion": ("unique_labels=3",),
    "fedavg_simulation": ("batch_size=3",),
    "sme": ("batch_size=3",),
    "label_counts": ("batch_size=3",),
    "tbi": ("target_labels=[0, 2]",),
    "ptbi": ("target_labels=[0, 2]",),
    "pli": ("target_labels=[0, 2]",),
}
"""What the recordings do not say, and an attack asks for."""


@pytest.mark.parametrize("name", sorted(registry("attacks")))
def test_flower_recording_attacked_by_name(
    name: str,
    weights: Path,
    predictions: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cls = registry("attacks")[name]
    recording, other = (weights, predictions) if Weights in cls.reads else (predictions, weights)
    few = ("--set", "steps=1") if "steps" in cls.__dataclass_fields__ else ()
    asked = ("--attack", name, *MODEL, *few, "--no-confidence", "--device", "cpu", "--out", str(tmp_path / "found"))
    known = [word for fact in FACTS.get(name, ()) for word in ("--known", fact)]
    answer = command(capsys, monkeypatch, "attack", str(recording), *asked, *known, "--json", "--quiet")
    assert answer.code == 0, answer.err
    rows = json.loads(answer.out)["rows"]
    assert [(row["status"], row["reason"]) for row in rows] == [("ok", "")] * len(rows)
    assert all(row["scores"] == {} for row in rows), "no truth, no score"
    wrong = command(capsys, monkeypatch, "attack", str(other), *asked, *known, "--json", "--quiet")
    assert wrong.code == 2
    assert "this attack reads" in wrong.err
    if known:
        untold = command(capsys, monkeypatch, "attack", str(recording), *asked, "--json", "--quiet")
        fact = FACTS[name][0].split("=")[0]
        assert untold.code == 2
        assert f"needs {fact}, which the transcript does not disclose" in untold.err
        assert f"--known {fact}=..." in untold.err


def test_what_was_found_is_shown_without_a_truth(
    weights: Path,
    predictions: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, out = ("--device", "cpu"), str(tmp_path / "found")
    counted = ("attack", str(weights), "--attack", "label_counts", *MODEL, "--known", "batch_size=3", *device)
    answer = command(capsys, monkeypatch, *counted, "--out", out)
    assert "node-101: images of each class [" in answer.out
    rows = [json.loads(line) for line in (tmp_path / "found" / "rows.jsonl").read_text().splitlines()]
    counts = [json.loads((tmp_path / "found" / "artifacts" / row["artifacts"]["counts"]).read_text()) for row in rows]
    assert [sum(one) for one in counts] == [3, 4], "as many as each client said it has"
    stolen = ("attack", str(predictions), "--attack", "msa", *MODEL, "--set", "steps=1", *device)
    answer = command(capsys, monkeypatch, *stolen, "--out", str(tmp_path / "copies"))
    assert "copies/models" in answer.out.replace("\n", "")
    assert len(list((tmp_path / "copies" / "models").glob("*.safetensors"))) == 2
    # Two clients with 3 and 4 images: iDLG reads one label only, and says so.
    refused = ("attack", str(weights), "--attack", "idlg", *MODEL, "--known", "batch_size=4", *device)
    answer = command(capsys, monkeypatch, *refused, "--no-confidence", "--out", str(tmp_path / "no"))
    assert "reads the label of one image" in " ".join(answer.out.split())


@pytest.mark.parametrize(
    ("fact", "reason"),
    [
        ("batchsize=4", "did you mean 'batch_size'"),
        ("batch_size=four", "must be a whole number of at least 1"),
        ("batch_size=0", "must be a whole number of at least 1"),
        ("lr=-1", "must be a number above 0"),
        ("target_labels=3", "must be a list of whole numbers"),
        ("batch_labels=[1]", "must be a list of lists"),
        ("batch_size", "--known batch_size: not of the form"),
    ],
)
def test_a_fact_that_makes_no_sense(
    fact: str, reason: str, weights: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = command(capsys, monkeypatch, "attack", str(weights), "--attack", "dlg", *MODEL, "--known", fact)
    assert answer.code == 2
    assert reason in " ".join(answer.err.split())


def test_what_is_known_replaces_what_a_client_said(weights: Path) -> None:
    seen = fedleak.load_transcript(weights)
    finding = fedleak.attack(seen, "dlm_plus", model=plain, known={"samples": 1}, steps=1, restarts=0, device="cpu")
    assert [len(victim.inputs) for victim in finding.victims] == [1, 1]
    with pytest.raises(RefusedError, match="known=seeds: no attack asks for it"):
        fedleak.attack(seen, "dlm_plus", model=plain, known={"seeds": 1})


def test_clients_that_answered_about_different_examples_are_attacked_each_on_its_own(tmp_path: Path) -> None:
    """cross_domain in one client only: its predictions are about other public examples than its neighbour's."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.manual_seed(0)
        with torch.no_grad():
            return reply_predictions(message, plain()(PUBLIC.inputs[read_request(message).index]), samples=5)

    class Narrowed(LocalGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Any]:
            from fedleak.defenses import CrossDomain
            from fedleak.integrations.flower import defend

            mod = defend(CrossDomain(), public=PublicSet(PUBLIC.inputs, domains=torch.arange(8) % 2))
            replies = []
            for message in messages:
                context = self.contexts[message.metadata.dst_node_id]
                one = message.metadata.dst_node_id == 101
                replies.append(mod(message, context, self.app) if one else self.app(message, context))
            return replies

    exchange(Narrowed(app), public=PUBLIC, classes=3, rounds=2, out=tmp_path / "r")
    seen = fedleak.load_transcript(tmp_path / "r")
    asked = [m.payload.index.tolist() for m in seen.round(1).received if isinstance(m.payload, Predictions)]
    assert asked == [[1, 3, 5, 7], list(range(8))]
    finding = fedleak.attack(seen, "msa", model=plain, steps=1, device="cpu")
    assert [victim.status for victim in finding.victims] == ["ok", "ok"]
    found = fedleak.attack(seen, "tbi", known={"target_labels": [0]}, steps=1, device="cpu")
    assert [victim.status for victim in found.victims] == ["ok"]
