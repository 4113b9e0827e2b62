"""The runner: a specification in, rows out. Read this first.

    spec ──plan──► federations ──► trials ──► rows, artifacts ──► rows.jsonl, report.html

Every finished piece is on disk before the next begins. Running again does only what is missing; the same seed gives
the same bits, whatever the number of jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedleak.audit.device import is_here
from fedleak.audit.display import Display
from fedleak.audit.estimate import estimate
from fedleak.audit.executors import check_executor, in_order_done, workers
from fedleak.audit.federations import run_federation
from fedleak.audit.plan import Plan, Trial, make_plan
from fedleak.audit.rows import Row
from fedleak.audit.spec import Spec
from fedleak.audit.store import RunFolder
from fedleak.audit.work import run_trial, without_result
from fedleak.errors import RefusedError
from fedleak.files import locked, replace_file

__all__ = ["run_audit"]


def run_audit(
    spec: Spec,
    out: Path,
    *,
    data_root: Path,
    device: str = "cpu",
    jobs: int | None = None,
    executor: str = "local",
    display: Display | None = None,
    only: Callable[[Mapping[str, Any]], bool] | None = None,
) -> list[Row]:
    """Run what is missing of a specification in a run folder and return all its rows, in the specification's order.

    `only` keeps to the trials whose `where` it accepts. The trials themselves are the same: what was finished before is
    among the rows, and what is left can be done another day.
    """
    display = display or Display.silent()
    check_executor(executor)
    out, data_root = out.resolve(), data_root.resolve()  # a worker may stand in another folder
    _check_free(out)
    with locked(out):
        folder = RunFolder(out)
        plan = make_plan(spec, data_root, device)
        found = {trial.key: rows for trial in plan.trials if (rows := folder.finished(trial.key)) is not None}
        _write(folder, plan, found)  # before the specification: by its rows a run folder is known as one
        replace_file(folder.spec_file, spec.text.encode())
        wanted = [trial for trial in plan.trials if only is None or only(trial.where())]
        missing = [trial for trial in wanted if trial.key not in found]
        needed = {trial.federation.key for trial in missing}
        federations = [
            job
            for job in plan.federations
            if job.key in needed and not (folder.transcript(job.key).is_dir() and folder.truth(job.key).is_dir())
        ]
        with workers(executor if missing else "local", jobs, device) as crew:
            display.plan(len(wanted), len(missing), len(federations), crew.jobs)
            # Measuring what nobody reads would be work for nothing, and a cluster's GPU may not be here.
            if missing and not display.quiet and is_here(device):
                display.note("timing a few steps of each kind of work ...")
                display.note(estimate(federations, missing, data_root, device, crew.jobs))
            common = (out, data_root, device)
            lacking: dict[str, str] = {}
            with display.stage("federations", len(federations)):
                for job, problem in in_order_done(
                    crew, run_federation, federations, display.inner, *common, starved=bool
                ):
                    if problem:
                        lacking[job.key] = f"its federation: {problem}"
                    said = f": {problem}" if problem else ""
                    display.done(f"{job.label()}{said}")
            for trial in missing:
                if reason := lacking.get(trial.federation.key):
                    found[trial.key] = [without_result(trial, "out_of_memory", reason)]
            if lacking:
                _write(folder, plan, found)
            missing = [trial for trial in missing if trial.key not in found]
            # Long trials first, so that the last worker is not left alone with one.
            missing.sort(key=lambda trial: trial.choice is None)
            with display.stage("attacks", len(missing)):
                for trial, rows in in_order_done(crew, run_trial, missing, display.inner, *common, starved=_starved):
                    found[trial.key] = rows
                    _write(folder, plan, found)
                    display.done(_outcome(trial, rows))
    return _rows(plan, found)


def _check_free(out: Path) -> None:
    """A folder in which somebody wrote a specification is not one to put a resolved copy over it. Damaged rows may have
    been deleted, as their error advises; finished trials still tell a run folder."""
    folder = RunFolder(out)
    if folder.spec_file.exists() and not folder.rows_file.exists() and not folder.trials.exists():
        raise RefusedError(
            f"out={out}: holds a {folder.spec_file.name} that no run wrote, and a run would put its own in its place; "
            "choose another folder with --out"
        )


def _starved(rows: Sequence[Row]) -> bool:
    return any(row.status == "out_of_memory" for row in rows)


def _rows(plan: Plan, found: dict[str, list[Row]]) -> list[Row]:
    return [row for trial in plan.trials for row in found.get(trial.key, [])]


def _write(folder: RunFolder, plan: Plan, found: dict[str, list[Row]]) -> None:
    folder.write_rows(_rows(plan, found))


def _outcome(trial: Trial, rows: Sequence[Row]) -> str:
    """One line that says what a trial found."""
    if trial.choice is None:
        correct = rows[0].scores.get("utility", [])
        if not correct:
            return f"{trial.label()}: no test accuracy ({rows[0].reason})"
        return f"{trial.label()}: test accuracy {sum(correct) / len(correct):.3f}"
    bad = [row for row in rows if row.status not in ("ok", "diverged")]
    marked = [row for row in rows if row.status == "ok" and row.reason]
    text = f"{trial.label()}: {_found(rows)}"
    for some, word in ((bad, bad[0].status if bad else ""), (marked, "marked")):
        text += f"; {len(some)} {word}: {some[0].reason}" if some else ""
    return text


def _found(rows: Sequence[Row]) -> str:
    """What was got, by the scores that this kind of finding has."""
    scores: dict[str, list[float]] = {"recovered": []}
    for row in rows:
        for metric, values in row.scores.items():
            scores.setdefault(metric, []).extend(values)

    def count(metric: str) -> str:
        return f"{sum(scores[metric]):.0f} of {len(scores[metric])}"

    def mean(metric: str) -> str:
        return f"{100 * sum(scores[metric]) / max(len(scores[metric]), 1):.1f} %"

    if "attack_accuracy" in scores and "victim_accuracy" in scores:
        return f"a copy that is {mean('attack_accuracy')} accurate, the victim {mean('victim_accuracy')}"
    if "attack_accuracy" in scores:
        return f"pictures of {count('attack_accuracy')} classes recognised"
    if "label_errors" in scores and not scores["recovered"] and "psnr" not in scores:
        return f"{count('label_errors')} labels wrong"
    return f"{count('recovered')} recovered"
