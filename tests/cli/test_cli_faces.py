"""PLI from the command line on a saved recording: what is said beside the pictures, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import Answer, fedleak
from fedleak.transcript import load_transcript, save_transcript
from fedleak.types import Predictions, Transcript

Run = Callable[..., Answer]

SPEC = """
metrics = ["attack_accuracy", "ssim"]
[data]
name = "orl"
size = 8
clients = 2
public = { targets = 4, drop_twins = true }
[model]
name = "mlp"
hidden = 4
[protocol]
name = "fedmd"
rounds = 1
transfer_epochs = 1
first_epochs = 1
server_epochs = 0
"""
TINY = ("--attack", "pli", "--set", "width=0.01", "--set", "steps=1", "--set", "batch_size=64")
TINY += ("--set", "prior_epochs=1", "--set", "prior_width=2", "--device", "cpu")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: fedleak(capsys, monkeypatch, *arguments)


@pytest.fixture
def recording(run: Run) -> Path:
    """A federation whose server keeps no model of its own."""
    Path("faces.toml").write_text(SPEC)
    assert run("audit", "faces.toml", "--out", "run", "--jobs", 1, "--device", "cpu", "--quiet").code == 0
    (found,) = Path("run/transcripts").iterdir()
    return found


def artifact(out: str, row: dict[str, Any], name: str) -> Any:
    return json.loads((Path(out) / "artifacts" / row["artifacts"][name]).read_text())


def test_what_the_attack_did_itself_is_said_and_kept(run: Run, recording: Path) -> None:
    answer = run("attack", recording, *TINY, "--truth", Path("run/truths") / recording.name, "--out", "judged")
    assert answer.code == 0, answer.err
    told = " ".join(answer.out.split())
    assert "server: f_0 trained by the attack: the recording has no predictions of the server" in told
    assert "the prior alone" in told
    assert "gain over it" in told
    assert "pictures taken from: client-" in told
    (row,) = map(json.loads, Path("judged/rows.jsonl").read_text().splitlines())
    assert artifact("judged", row, "notes")["server"].startswith("f_0 trained by the attack")
    facts = artifact("judged", row, "facts")
    assert len(facts["labels"]) == len(facts["chosen_client"]) == row["n"] == 4
    assert set(facts["chosen_client"]) <= {"client-0", "client-1"}

    blind = run("attack", recording, *TINY, "--out", "blind", "--json")
    (row,) = blind.json["rows"]
    assert artifact("blind", row, "facts") == {key: facts[key] for key in ("labels", "chosen_client")}


def sent(seen: Transcript) -> Predictions:
    payload = seen.rounds[0].received[0].payload
    assert isinstance(payload, Predictions)
    return payload


def resent(seen: Transcript, **changes: Any) -> Transcript:
    (first,) = seen.rounds
    message = first.received[0]
    changed = replace(message, payload=replace(sent(seen), **changes))
    return replace(seen, rounds=(replace(first, received=(changed, *first.received[1:])),))


def knowing(seen: Transcript, **changes: Any) -> Transcript:
    return replace(seen, setup=replace(seen.setup, **changes))


def one_domain(seen: Transcript) -> Transcript:
    assert seen.setup.public is not None
    return knowing(seen, public=replace(seen.setup.public, domains=None))


WRONG: dict[str, tuple[Callable[[Transcript], Transcript], str]] = {
    "a column too few": (
        lambda seen: resent(seen, values=sent(seen).values[:, 1:]),
        "round 1, client-0: predictions of",
    ),
    "more rows than public pictures": (
        lambda seen: resent(seen, values=sent(seen).values.repeat(2, 1), index=torch.arange(2 * len(sent(seen).index))),
        "they must be on pictures 0 to",
    ),
    "probabilities of sum 2": (
        lambda seen: resent(seen, values=2 * torch.softmax(sent(seen).values, 1), scale="probabilities"),
        "1 away from one; if these are scores",
    ),
    "no other domain": (one_domain, "prior='autoencoder': the public set has no pictures of another domain"),
    "labels that nobody holds": (
        lambda seen: knowing(
            seen,
            disclosed={"target_labels": sorted(set(range(40)) - set(seen.setup.disclosed["target_labels"]))[:3]},
        ),
        "no client holds any of them",
    ),
    "no class": (lambda seen: knowing(seen, disclosed={"target_labels": [99]}), "target_labels"),
}


def test_a_recording_that_cannot_be_attacked_is_refused_with_the_reason(run: Run, recording: Path) -> None:
    truth = Path("run/truths") / recording.name
    for number, (what, (change, words)) in enumerate(WRONG.items()):
        save_transcript(change(load_transcript(recording)), Path(f"wrong-{number}"))
        answer = run("attack", f"wrong-{number}", *TINY, "--truth", truth, "--out", f"out-{number}")
        assert answer.code == 2, what
        assert words in answer.err, what
        assert "Traceback" not in answer.err
        assert answer.out == ""
