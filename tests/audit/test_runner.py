"""The runner: rows come once, whole, the same every time; what is finished is never done again."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import SMALL

from fedleak.attacks import ATTACKS
from fedleak.audit import federations, plan, work
from fedleak.audit.rows import MAY_DIFFER, Row
from fedleak.audit.runner import run_audit
from fedleak.audit.spec import make_spec
from fedleak.audit.store import RunFolder
from fedleak.audit.truths import load_truth
from fedleak.components import configure, parameters
from fedleak.data import DataSpec, PublicSpec
from fedleak.errors import RefusedError
from fedleak.files import locked
from fedleak.metrics import NotAvailable
from fedleak.models.logit_papers import AdaMSACNN
from fedleak.models.small import CNN
from fedleak.transcript import load_transcript
from fedleak.types import RecoveredCounts, Weights


def run(out: Path, tables: Mapping[str, Any] = SMALL, jobs: int = 1) -> list[Row]:
    return run_audit(make_spec(tables), out, data_root=Path("nowhere"), jobs=jobs)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    run(out)
    return out


def without_clock(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (path / "rows.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in MAY_DIFFER} for row in rows]


def test_one_row_per_victim_and_one_for_the_utility_of_each_federation(finished: Path) -> None:
    rows = RunFolder(finished).rows()
    kinds = [(r.where["defense"], r.where["attack"]) for r in rows]
    for defense in ("none", "gaussian(sigma=0.5)"):
        assert kinds.count((defense, "dlm_plus")) == 3
        assert kinds.count((defense, "dlg")) == 3
        assert kinds.count((defense, "none")) == 1
    assert len(rows) == 14
    assert {r.status for r in rows} <= {"ok", "diverged"}


def test_no_two_lines_of_a_run_say_the_same() -> None:
    swept = {"protocol.lr": [0.1, 0.2], "model.hidden": [4, 6]}
    attacks = [{"name": "dlg", "steps": 3}, {"name": "dlg", "steps": 4}]
    tables = {**SMALL, "seeds": [0, 1], "sweep": swept, "attacks": attacks}
    made = plan.make_plan(make_spec(tables), Path("nowhere"), "cpu")
    federations, trials = [job.label() for job in made.federations], [trial.label() for trial in made.trials]
    assert len(set(federations)) == len(federations) == 16
    assert len(set(trials)) == len(trials) == 48
    assert federations[0] == "orl fedavg, seed = 0, protocol.lr = 0.1, model.hidden = 4, no defense"
    assert trials[2] == f"{federations[0]}, dlg, attack.steps = 4"
    alone = plan.make_plan(make_spec(SMALL), Path("nowhere"), "cpu")
    assert [job.label() for job in alone.federations] == ["orl fedavg, no defense", "orl fedavg, gaussian(sigma=0.5)"]


def test_a_row_is_what_the_contract_says(finished: Path) -> None:
    for row in RunFolder(finished).rows():
        line = json.loads(row.line())
        assert {"trial", "where", "scores", "n", "status", "reason", "threshold", "granted", "artifacts"} <= set(line)
        assert {"dataset", "protocol", "defense", "attack", "seed"} <= set(row.where)
        assert all(isinstance(value, str | int | float) for value in row.where.values())
        assert all(len(values) == row.n for values in row.scores.values())
        if row.where["attack"] == "none":
            assert set(row.scores["utility"]) <= {0.0, 1.0}
            continue
        assert row.threshold == 30.0
        assert "client" in row.where
        assert "preset" in row.where
        # DLM+ is told how many images there are and nothing else; DLG needs the learning rate on top.
        expected = ("samples",) if row.where["attack"] == "dlm_plus" else None
        assert row.granted == expected if expected else "lr" in row.granted
        assert set(row.baselines) == {"mean_image", "noise", "other_image"}


def test_a_metric_whose_weights_were_missing_is_measured_when_they_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What says "fetch the weights" must not be what the next run finds finished."""
    spec = make_spec({**SMALL, "metrics": ["psnr", "lpips"]})

    def keys(found: object) -> tuple[set[str], set[str]]:
        monkeypatch.setattr(plan, "load_lpips", lambda root: found)
        made = plan.make_plan(spec, Path("nowhere"), "cpu").trials
        return {one.key for one in made if one.choice is None}, {one.key for one in made if one.choice is not None}

    (utility, without), (same, measured) = keys(NotAvailable("no weights")), keys(object())
    assert same == utility
    assert without
    assert without.isdisjoint(measured)
    assert keys(NotAvailable("no weights")) == (utility, without)


@pytest.mark.parametrize(
    ("part", "federations", "attacks"),
    [(DataSpec, True, True), (PublicSpec, True, True), (AdaMSACNN, False, True), (CNN, True, True)],
)
def test_what_is_computed_otherwise_since_a_revision_is_not_found_finished(
    monkeypatch: pytest.MonkeyPatch, part: type, federations: bool, attacks: bool
) -> None:
    """Of data, and of models that only a table of the protocol or of an attack names."""
    tables = {
        "data": {"name": "orl", "size": 8, "clients": 2, "test_fraction": 0.2, "public": {"targets": 4}},
        "model": {"name": "mlp", "hidden": 4},
        "protocol": {"name": "fedmd", "rounds": 1, "client_models": [{"name": "cnn"}]},
        "attacks": [{"name": "msa", "network": {"name": "adamsa_cnn", "widths": [2, 2]}}],
    }

    def keys() -> tuple[set[str], set[str]]:
        made = plan.make_plan(make_spec(tables), Path("nowhere"), "cpu")
        return {job.key for job in made.federations}, {one.key for one in made.trials if one.choice is not None}

    before = keys()
    monkeypatch.setattr(part, "revision", 2)
    after = keys()
    assert [one.isdisjoint(other) for one, other in zip(before, after, strict=True)] == [federations, attacks]


def test_every_artifact_is_there_under_the_hash_of_its_content(finished: Path) -> None:
    folder = RunFolder(finished)
    named = {sha for row in folder.rows() for sha in row.artifacts.values()}
    assert named == {path.name for path in (finished / "artifacts").iterdir()}
    for sha in named:
        folder.get(sha)
    (damaged := finished.parent / "damaged" / "artifacts").mkdir(parents=True)
    (damaged / ("0" * 64)).write_bytes(b"other")
    with pytest.raises(RefusedError, match="does not match its name"):
        RunFolder(damaged.parent).get("0" * 64)


def test_no_host_and_no_path_in_a_row_or_its_provenance(finished: Path) -> None:
    import os
    import socket

    folder = RunFolder(finished)
    text = (finished / "rows.jsonl").read_text()
    for row in folder.rows():
        text += folder.get(row.artifacts["provenance"]).decode()
    assert str(finished) not in text
    assert os.getcwd() not in text
    assert f'"{socket.gethostname()}"' not in text


def test_the_same_seed_gives_the_same_bits_whatever_the_number_of_jobs(finished: Path, tmp_path: Path) -> None:
    run(tmp_path, jobs=2)
    assert without_clock(tmp_path) == without_clock(finished)


def test_another_seed_gives_other_numbers(finished: Path, tmp_path: Path) -> None:
    rows = run(tmp_path, {**SMALL, "seeds": [1]})
    assert {r.trial for r in rows}.isdisjoint({r.trial for r in RunFolder(finished).rows()})
    assert rows[0].scores != RunFolder(finished).rows()[0].scores


def test_running_again_does_nothing(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (finished / "rows.jsonl").read_bytes()

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a finished piece of work was done again")

    monkeypatch.setattr("fedleak.audit.runner.run_trial", never)
    monkeypatch.setattr("fedleak.audit.runner.run_federation", never)
    run(finished)
    assert (finished / "rows.jsonl").read_bytes() == before


def test_trials_that_share_a_federation_run_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    real = federations.run_federation

    def counted(job: Any, *rest: Any, **more: Any) -> None:
        if not job.key.startswith("probe"):
            ran.append(job.key)
        real(job, *rest, **more)

    monkeypatch.setattr("fedleak.audit.runner.run_federation", counted)
    run(tmp_path)
    assert len(ran) == len(set(ran)) == 2
    # A third attack later needs no new federation.
    more = {**SMALL, "attacks": [*SMALL["attacks"], {"name": "dlg", "steps": 4}]}
    run(tmp_path, more)
    assert len(ran) == 2


def test_a_changed_and_restored_specification_costs_nothing_twice(finished: Path, tmp_path: Path) -> None:
    short = {**SMALL, "defenses": [{"name": "none"}]}
    rows = run(tmp_path, short)
    assert {r.where["defense"] for r in RunFolder(tmp_path).rows()} == {"none"}
    run(tmp_path)
    assert without_clock(tmp_path) == without_clock(finished)
    assert [r.line() for r in run(tmp_path, short)] == [r.line() for r in rows]


def test_a_missing_artifact_is_made_again(tmp_path: Path) -> None:
    rows = run(tmp_path, {**SMALL, "defenses": [], "attacks": SMALL["attacks"][:1]})
    lost = next(row.artifacts["images"] for row in rows if "images" in row.artifacts)
    (tmp_path / "artifacts" / lost).unlink()
    again = run(tmp_path, {**SMALL, "defenses": [], "attacks": SMALL["attacks"][:1]})
    assert (tmp_path / "artifacts" / lost).is_file()
    assert all(a.same_result_as(b) for a, b in zip(rows, again, strict=True))


def test_a_failed_trial_is_a_row_and_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {**SMALL, "defenses": [], "attacks": SMALL["attacks"][:1]}

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr("fedleak.audit.work.attack_transcript", broken)
        rows = run(tmp_path, tables)
    failed = [row for row in rows if row.status == "failed"]
    assert len(failed) == 1
    assert failed[0].reason.startswith("ZeroDivisionError: on purpose")
    assert [row.status for row in run(tmp_path, tables)] == ["ok"] * 4


@pytest.mark.parametrize(
    ("data", "protocol", "threshold"),
    [
        ({}, {}, 20.0),  # all that a client has, which is several
        ({"per_client": 5}, {}, 20.0),
        ({"per_client": 5}, {"examples": 1}, 30.0),
        ({"per_client": 1}, {}, 30.0),
        ({"per_client": 1}, {"examples": 5}, 30.0),
    ],
)
def test_what_counts_as_recovered_goes_by_the_images_behind_an_update(
    tmp_path: Path, data: dict[str, int], protocol: dict[str, int], threshold: float
) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (40, 28, 28), dtype=np.uint8)
    labels = np.arange(40) % 10
    np.savez(tmp_path / "mnist.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    tables = {**SMALL, "data": {"name": "mnist", "clients": 2, **data}, "protocol": {"name": "fedsgd", **protocol}}
    assert {trial.threshold for trial in plan.make_plan(make_spec(tables), tmp_path, "cpu").trials} == {threshold}


def test_a_specification_of_somebodys_own_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text("# mine")
    with pytest.raises(RefusedError, match=r"holds a spec.toml that no run wrote.*--out"):
        run(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["spec.toml"]
    assert (tmp_path / "spec.toml").read_text() == "# mine"


def test_a_run_whose_rows_were_deleted_goes_on(tmp_path: Path) -> None:
    """Which is what the error about damaged rows advises."""
    rows = run(tmp_path)
    (tmp_path / "rows.jsonl").unlink()
    assert run(tmp_path) == rows
    assert (tmp_path / "rows.jsonl").is_file()


def test_a_federation_without_memory_marks_its_trials_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = federations.load

    def tight(*given: Any, **more: Any) -> Any:
        found = real(*given, **more)
        tried.append(1)
        if len(tried) > 1:  # the second federation
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 126 MiB.\nand more")
        return found

    tried: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr("fedleak.audit.runner.estimate", lambda *_: "")
        patched.setattr("fedleak.audit.federations.load", tight)
        rows = run(tmp_path)
    lacking = [row for row in rows if row.status == "out_of_memory"]
    assert {row.where["defense"] for row in lacking} == {"gaussian(sigma=0.5)"}
    assert {row.where["attack"] for row in lacking} == {"none", "dlm_plus", "dlg"}
    assert {row.reason for row in lacking} == {"its federation: CUDA out of memory. Tried to allocate 126 MiB."}
    assert {row.status for row in rows if row not in lacking} == {"ok"}
    assert {row.status for row in run(tmp_path)} == {"ok"}


@pytest.mark.parametrize(
    "problem",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
        MemoryError("Unable to allocate 95.4 GiB for an array"),
        MemoryError(),
    ],
)
def test_rows_of_a_run_without_any_memory_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    def none_left(*_given: Any, **_more: Any) -> Any:
        raise problem

    monkeypatch.setattr("fedleak.audit.runner.estimate", lambda *_: "")
    monkeypatch.setattr("fedleak.audit.federations.load", none_left)
    rows = run(tmp_path)
    assert {row.status for row in rows} == {"out_of_memory"}
    assert [row.where for row in RunFolder(tmp_path).rows()] == [row.where for row in rows]


def test_a_trial_that_takes_too_long_is_a_row_and_is_tried_again(tmp_path: Path) -> None:
    tables = {**SMALL, "defenses": [], "attacks": SMALL["attacks"][:1]}
    rows = run(tmp_path, {**tables, "time_limit": 1e-6})
    assert [(row.where["attack"], row.status) for row in rows] == [("none", "ok"), ("dlm_plus", "timed_out")]
    assert rows[1].reason.startswith("time_limit=1e-06 s was over at step ")
    later = run(tmp_path, {**tables, "time_limit": 3600})
    assert [row.status for row in later] == ["ok"] * 4
    assert {row.trial for row in later} == {row.trial for row in rows}, "the limit is no part of what a trial is"


def test_a_row_names_no_path_and_a_full_disk_is_no_failed_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {**SMALL, "defenses": [], "attacks": SMALL["attacks"][:1]}

    def failing(problem: OSError) -> Any:
        def broken(*_: Any, **__: Any) -> None:
            raise problem

        return broken

    with monkeypatch.context() as patched:
        closed = PermissionError(errno.EACCES, "Permission denied", "/home/somebody/weights")
        patched.setattr("fedleak.audit.work.attack_transcript", failing(closed))
        failed = [row for row in run(tmp_path, tables) if row.status == "failed"]
        assert failed[0].reason.startswith("PermissionError: Permission denied (")
        assert "somebody" not in failed[0].line()
        patched.setattr("fedleak.audit.work.attack_transcript", failing(OSError(errno.ENOSPC, "No space left")))
        with pytest.raises(OSError, match="No space left"):
            run(tmp_path, tables)
    assert [row.status for row in run(tmp_path, tables)] == ["ok"] * 4, "what was finished is kept, the rest goes on"


def test_the_attack_gives_the_same_bits_when_the_truth_is_gone(tmp_path: Path) -> None:
    """The truth is deleted before the attack; nothing changes."""
    import shutil

    told = ["samples", "batch_size", "epochs", "lr", "momentum", "label_counts", "unique_labels"]
    run(tmp_path, {**SMALL, "defenses": [], "attacks": [], "protocol": {**SMALL["protocol"], "disclose": told}})
    transcript = load_transcript(next((tmp_path / "transcripts").iterdir()))
    reading = {name: cls for name, cls in ATTACKS.items() if Weights in cls.reads}
    assert len(reading) > 6
    attacks = {}
    for name, cls in reading.items():
        fast = {key: value for key, value in (("steps", 3), ("restarts", 1)) if key in parameters(cls)}
        attacks[name] = configure(cls, fast)
    with_truth = {
        name: work.attack_transcript(attack, name, transcript, 0, "cpu")[0] for name, attack in attacks.items()
    }
    shutil.rmtree(tmp_path / "truths")  # once every attack has run beside it
    for name, attack in attacks.items():
        without, _ = work.attack_transcript(attack, name, transcript, 0, "cpu")
        for a, b in zip(with_truth[name].victims, without.victims, strict=True):
            field = "counts" if isinstance(a, RecoveredCounts) else "inputs"
            assert torch.equal(getattr(a, field), getattr(b, field))


def test_two_runs_cannot_write_to_one_folder(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(RefusedError, match="another run is writing"):
        run(tmp_path)


def test_the_users_own_module(tmp_path: Path) -> None:
    spec = make_spec({**SMALL, "attacks": SMALL["attacks"][:1]}, model=OwnNet)
    rows = run_audit(spec, tmp_path, data_root=Path("nowhere"), jobs=1)
    assert {row.where["model"] for row in rows} == {f"{__name__}:OwnNet"}
    assert {row.status for row in rows} == {"ok"}


class OwnNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 40))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.body(inputs)


def test_the_evaluator_knows_whom_unlabelled_public_images_show(tmp_path: Path) -> None:
    public = {"targets": 4, "drop_twins": True, "labels": False}
    tables = {
        "data": {"name": "orl", "size": 8, "clients": 2, "test_fraction": 0.2, "public": public},
        "model": {"name": "mlp", "hidden": 4},
        "protocol": {"name": "dsfl", "rounds": 1, "epochs": 1, "public_epochs": 1},
        "attacks": [],
    }
    run_audit(make_spec(tables), tmp_path, data_root=Path("nowhere"), jobs=1)
    seen = load_transcript(next((tmp_path / "transcripts").iterdir())).setup.public
    assert seen is not None
    assert seen.labels is None
    truth = load_truth(next((tmp_path / "truths").iterdir()), seen)
    assert truth.public is not None
    assert truth.public.labels is not None
    assert len(torch.unique(truth.public.labels)) == 40
    clean = truth.public.domains == 0
    assert int(truth.public.labels[clean].min()) == 4, "clean faces are of people who are no targets"
