"""A page about every kind of finding at once: nothing breaks where there are no images, and nothing is left unsaid."""

from __future__ import annotations

import io
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from findings import copy, counts, people
from rich.console import Console
from test_report_page import Page

from fedleak.audit.rows import Row
from fedleak.audit.store import RunFolder
from fedleak.report import build_report, summary
from fedleak.report.arms import arms_of, strongest
from fedleak.report.beside import beside_of, copied, pictured
from fedleak.report.blobs import Blobs
from fedleak.report.gallery import gallery_of
from fedleak.report.glance import glance_of
from fedleak.report.numbers import numbers_of
from fedleak.report.terminal import summary_table

Make = Callable[..., Row]
Write = Callable[..., Path]


@pytest.fixture(scope="module")
def mixed_text(mixed_run: Path) -> str:
    return build_report(mixed_run, {}).read_text(encoding="utf-8")


def test_the_sections_of_a_mixed_run(mixed_text: str) -> None:
    page = Page(mixed_text)
    sections = [attributes["id"] for attributes in page.all("section")]
    expected = ["verdict", "pictures", "table", "utility", "frontier", "beside", "confidence", "traces"]
    assert sections == [*expected, "untested", "appendix"]
    assert {f"#{name}" for name in sections} <= {attributes["href"] for attributes in page.all("a")}
    assert all(attributes.get("alt") for attributes in page.all("img"))
    assert all(attributes.get("scope") for attributes in page.all("th"))
    assert all(a.get("aria-label") or a.get("aria-hidden") for a in page.all("svg"))


def test_what_must_be_said_of_predictions_is_said(mixed_text: str) -> None:
    text = Page(mixed_text).text.replace("\N{NO-BREAK SPACE}", " ")
    for words in (
        "pli recovered pictures of 17 of 20 people from the predictions that 4 clients sent in fedmd",
        "knowing only the public images and which labels the clients hold",
        "12 private images have a public twin in fedmd",
        "It took the picture from a client that holds the person in 95 % of the cases",
        "upper bound, round 4",
        "the prior of the attack, before it saw a message",
        "1 of 40 labels wrong (a guess gets 32 wrong)",
        "every client has a model of its own: the test accuracy is the mean of them",
        "Median entropy in nats: server on public",
        "Pareto front",
    ):
        assert words in text, words


def test_the_same_rows_give_the_same_bytes_in_any_order(mixed_run: Path, tmp_path: Path, mixed_text: str) -> None:
    copied_run = tmp_path / "copy"
    shutil.copytree(mixed_run, copied_run)
    rows = RunFolder(copied_run).rows()
    random.Random(3).shuffle(rows)
    RunFolder(copied_run).write_rows(rows)
    assert build_report(copied_run, {}).read_bytes() == mixed_text.encode()


def test_a_person_is_shown_with_the_prior_and_the_similarity(mixed_run: Path, mixed_text: str) -> None:
    folder = RunFolder(mixed_run)
    rows, blobs = folder.rows(), Blobs(folder)
    arms = arms_of(summary(rows), rows, blobs.provenance)
    gallery = gallery_of([("all", arms)], strongest, blobs)
    assert gallery is not None
    images, classes = gallery.large
    assert (images.kind, images.pairs[0].client, images.pairs[0].closeness) == ("images", "client-0", "34.0 dB")
    assert (classes.kind, classes.pairs[0].client, classes.pairs[0].closeness) == ("classes", "person 1", "SSIM 0.70")
    assert (images.pairs[0].prior, classes.pairs[0].mark) == ("", "recognised")
    assert classes.pairs[0].prior.startswith("data:image/png")
    assert "any other, private or public" in classes.note
    alts = [attributes["alt"] or "" for attributes in Page(mixed_text).all("img")]
    assert sum(alt == "Prior of person 1" for alt in alts) == 3  # the large pictures, and once a sheet of two attacks


def test_what_the_attacker_was_told_is_explained_by_name(mixed_run: Path) -> None:
    page = build_report(mixed_run, {}).read_text(encoding="utf-8")
    told = "(samples: the number of images; target_labels: which labels the clients hold)"
    assert f"what the server is assumed to know besides what was sent {told}</dd>" in page


def test_every_kind_has_its_own_table_with_its_own_columns(mixed_run: Path) -> None:
    rows = RunFolder(mixed_run).rows()
    tables = numbers_of([("all", arms_of(summary(rows), rows, lambda row: {}))])
    assert [(table.title, table.counted, table.metrics) for table in tables] == [
        ("Recovered images", "Images", ("recovered", "psnr", "ssim")),
        ("Pictures of classes", "Classes", ("ssim", "attack_accuracy", "nearest_public")),
        ("Copied models", "Test images", ("attack_accuracy", "fidelity", "victim_accuracy")),
        ("Label counts", "Labels", ("label_errors",)),
    ]


def test_an_attack_that_was_refused_stands_with_its_kind(make_row: Make) -> None:
    refused = make_row({"attack": "msa", "protocol": "fedmd", "defense": "label_only"}, {}, status="refused")
    rows = [copy(make_row, right=63, victim=65), refused]
    (table,) = numbers_of([("fedmd", arms_of(summary(rows), rows, lambda row: {}))])
    assert table.title == "Copied models"
    assert [arm.title for arm, _ in table.federations[0][1]] == ["no defense", "label_only"]


def test_at_a_glance_there_is_a_line_for_every_kind(make_row: Make) -> None:
    rows = [people(make_row, hits=17), copy(make_row, right=63, victim=65), counts(make_row, wrong=3)]
    found = summary(rows)
    arms = arms_of(found, rows, lambda row: {})
    glance = glance_of([(str(arm.where["protocol"]), [arm]) for arm in arms])
    assert glance is not None
    cells = {name: cells[0] for name, cells in glance.lines}
    assert {name: (cell.level, cell.count, cell.attack) for name, cell in cells.items() if cell is not None} == {
        "fedavg · labels": ("partial", "47 of 50", "label_counts"),
        "fedmd · pictures of people": ("severe", "17 of 20", "pli"),
        "fedmd · copied models": ("severe", "63 %", "msa, victim 65 %"),
    }


def test_the_gain_over_the_prior_is_paired_by_class(make_row: Make) -> None:
    (found,) = summary([people(make_row, hits=17)])
    line = pictured(found, lambda row: {"twins": 3, "chosen_client_right": 0.5})
    assert (line.prior["attack_accuracy"], line.gain["attack_accuracy"].mean) == (0.1, pytest.approx(0.75))
    assert (line.gain["ssim"].mean, line.gain["ssim"].low) == (pytest.approx(0.2), pytest.approx(0.2))
    assert (line.owner, line.twins_said, dict(line.stranger)) == (0.5, "3", {})
    assert pictured(found).twins_said == "not recorded"


def test_a_difference_that_is_never_there_is_not_a_share(make_row: Make) -> None:
    (found,) = summary([people(make_row, hits=2)])
    gain = pictured(found).gain["attack_accuracy"]
    assert (gain.mean, gain.low, gain.high) == (0.0, 0.0, 0.0)  # not 0 to 17 %, the bound of a share


def test_the_best_round_is_only_an_upper_bound(make_row: Make) -> None:
    (found,) = summary([copy(make_row, 63, 65, client=f"client-{c}") for c in range(2)])
    best = {"client-0": 3, "client-1": 4}
    line = copied(found, lambda row: {"upper_bound_accuracy": 0.7, "upper_bound_round": best[row.where["client"]]})
    assert line.gap is not None
    assert line.found.success is not None
    assert (line.gap.mean, line.bound, line.bound_rounds) == (pytest.approx(0.02), 0.7, "rounds 3 to 4")
    assert line.found.success.mean == pytest.approx(0.63)  # what is judged is the final round
    assert copied(found).bound is None


def test_theorem_2_stands_beside_the_measured_risk(make_row: Make, mixed_text: str) -> None:
    (found,) = summary([copy(make_row, 63, 65, client=f"client-{c}") for c in range(2)])
    far = {"client-0": 1.5, "client-1": 1.7}

    def said(unknown: float | None) -> Any:
        return lambda row: {"theorem_2": {"alpha": 0.25, "distance": far[row.where["client"]], "lambda": unknown}}

    # (1 - 0.25) (1.6 / 2 + lambda), by hand
    assert copied(found, said(None)).theorem == "within 0.60 + 0.75 λ"
    assert copied(found, said(0.2)).theorem == "within 0.75"
    assert copied(found, lambda row: {"theorem_2": {"alpha": "much"}}).theorem == ""
    assert copied(found).theorem == ""
    assert "within 0.80 + 1.00 λ" in " ".join(Page(mixed_text).text.split())


def test_damaged_facts_cost_their_words_not_the_page(write_run: Write, make_row: Make) -> None:
    row = people(make_row, hits=17)
    run = write_run([])
    strange = RunFolder(run).put_json({"twins": "many", "chosen_client_right": None})
    lost = "0" * 64
    rows = [
        make_row(row.where, row.scores, baselines=row.baselines, artifacts={"facts": strange}),
        make_row({**row.where, "seed": 1}, row.scores, baselines=row.baselines, artifacts={"facts": lost}),
        make_row({"attack": "none", "protocol": "fedmd"}, {"utility": [1.0]}, artifacts={"entropies": lost}),
    ]
    RunFolder(run).write_rows(rows)
    page = Page(build_report(run, {}).read_text(encoding="utf-8"))
    assert "34 of 40 people" in page.text.replace("\N{NO-BREAK SPACE}", " ")
    assert "not recorded" in page.text
    assert "missing" in page.text
    assert beside_of([], lambda row: {}) == []


def test_it_fits_into_80_columns_with_every_kind(mixed_run: Path) -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(summary_table(RunFolder(mixed_run).rows()))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(len(line) for line in lines) <= 80
    assert not any("…" in line for line in lines)

    def words(attack: str) -> str:
        return " ".join(next(line for line in lines if f" {attack} " in line).split())

    assert words("pli") == "pli 17 of 20 70 to 100 % - 10 % 0.67 64.4 %"
    assert words("label_counts").endswith("label_counts 39 of 40 90 to 100 % - 20 % - 69.5 %")
    assert any("copy of 65.2 %" in line for line in lines)
