"""What a trial says on the terminal, and how sure the models of a federation are, stored beside its utility."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load

from fedleak.audit import work
from fedleak.audit.plan import Trial
from fedleak.audit.rows import Row
from fedleak.audit.runner import _outcome
from fedleak.audit.store import RunFolder
from fedleak.types import Examples, Truth

NOTHING = Examples(torch.zeros(0, 1, 2, 2), torch.zeros(0, dtype=torch.long))


def trial(attack: str | None) -> Trial:
    made = SimpleNamespace(
        key="k",
        choice=attack,
        label=lambda: f"orl fedmd none {attack}",
        where=lambda: {"attack": "none"},
        federation=SimpleNamespace(key="f", split={"hash": "h"}),
    )
    return cast(Trial, made)


def row(scores: Mapping[str, Sequence[float]], status: Any = "ok", reason: str = "") -> Row:
    return Row(trial="k", where={}, scores=scores, n=2, status=status, reason=reason)


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ({"psnr": [40.0, 9.0], "recovered": [1.0, 0.0], "label_errors": [0.0, 1.0]}, "1 of 2 recovered"),
        ({"attack_accuracy": [1.0, 0.0], "ssim": [0.5, 0.1]}, "pictures of 1 of 2 classes recognised"),
        (
            {"attack_accuracy": [1.0, 0.0], "victim_accuracy": [1.0, 1.0], "fidelity": [1.0, 0.0]},
            "a copy that is 50.0 % accurate, the victim 100.0 %",
        ),
        ({"label_errors": [1.0, 0.0]}, "1 of 2 labels wrong"),
        ({}, "0 of 0 recovered"),
    ],
)
def test_the_line_of_a_trial_speaks_of_what_was_found(scores: Mapping[str, Sequence[float]], said: str) -> None:
    assert _outcome(trial("x"), [row(scores)]) == f"orl fedmd none x: {said}"


def test_a_federation_without_a_test_set_is_not_said_to_be_wrong_about_everything() -> None:
    assert _outcome(trial(None), [row({"utility": [1.0, 0.5]})]).endswith(": test accuracy 0.750")
    untested = _outcome(trial(None), [row({}, "refused", "not tested")])
    assert untested == "orl fedmd none None: no test accuracy (not tested)"


def test_a_refused_victim_is_told_with_its_reason() -> None:
    rows = [row({"label_errors": [0.0, 0.0]}), row({}, "refused", "no history")]
    assert _outcome(trial("x"), rows) == "orl fedmd none x: 0 of 2 labels wrong; 1 refused: no history"


@pytest.mark.parametrize("recorded", [True, False])
def test_entropies_are_stored_beside_the_utility(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    sure = {"server on public": torch.tensor([0.5, 0.25]), "client on private": torch.tensor([0.125])}
    truth = Truth(NOTHING, (), {}, NOTHING, correct=torch.tensor([0.5, 1.0]), entropies=sure if recorded else {})
    monkeypatch.setattr(work, "load_truth", lambda *_: truth)
    monkeypatch.setattr(work, "load_transcript", lambda *_: None)
    monkeypatch.setattr(work, "provenance", lambda *_, **more: more)
    folder = RunFolder(tmp_path)
    (found,) = work._utility_rows(trial(None), folder, "cpu")
    assert found.scores == {"utility": [0.5, 1.0]}
    assert ("entropies" in found.artifacts) is recorded
    if recorded:
        stored = load(folder.get(found.artifacts["entropies"]))
        assert {name: values.tolist() for name, values in stored.items()} == {
            "server on public": [0.5, 0.25],
            "client on private": [0.125],
        }


def test_clients_that_were_marked_are_said_with_a_reason() -> None:
    rows = [row({"label_errors": [0.0]}), row({"label_errors": [1.0]}, reason="lr is wrong")]
    assert _outcome(trial("x"), rows) == "orl fedmd none x: 1 of 2 labels wrong; 1 marked: lr is wrong"
