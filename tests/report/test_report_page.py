"""The page as a whole: self-contained, escaped, complete, and the same bytes for the same rows."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedleak.audit.rows import Row
from fedleak.audit.store import RunFolder
from fedleak.errors import RefusedError
from fedleak.report import build_report
from fedleak.report.page import TIED

Make = Callable[..., Row]
Write = Callable[..., Path]


class Attack:
    paper = "Somebody 2020"


ATTACKS = {"dlg": Attack, "dlm_plus": Attack, "cosine": Attack}
VOID = {"meta", "link", "img", "br", "wbr"}


class Page(HTMLParser):
    """A page as a browser would see it: refuses tags that do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


@pytest.fixture(scope="module")
def faces_text(faces_run: Path) -> str:
    return build_report(faces_run, ATTACKS).read_text(encoding="utf-8")


def test_the_page_is_well_formed_and_in_the_promised_order(faces_text: str) -> None:
    page = Page(faces_text)
    sections = [attributes["id"] for attributes in page.all("section")]
    assert sections == ["verdict", "pictures", "table", "utility", "frontier", "traces", "untested", "appendix"]
    targets = {attributes["href"] for attributes in page.all("a")}
    assert {f"#{name}" for name in sections} <= targets
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_nothing_is_fetched_from_anywhere(faces_text: str) -> None:
    page = Page(faces_text)
    for _, attributes in page.tags:
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            assert re.match(r"(data:|#)", attributes.get(name) or "#"), attributes
    assert not re.search(r"@import|url\(|http-equiv=.refresh", faces_text)
    assert "http://" not in faces_text.replace("http-equiv", "")
    assert "https://" not in faces_text
    assert page.all("script") == []
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def test_it_can_be_read_without_eyes(faces_text: str) -> None:
    page = Page(faces_text)
    assert page.all("html")[0]["lang"] == "en"
    assert all(attributes.get("alt") for attributes in page.all("img"))
    assert all(attributes.get("scope") for attributes in page.all("th"))
    assert all(a.get("aria-label") or a.get("aria-hidden") for a in page.all("svg"))


def test_all_that_was_promised_is_there(faces_text: str) -> None:
    text = Page(faces_text).text
    for words in (
        "With no defense, dlm_plus recovered 10 of 10 faces from the gradients",
        "As deployed (fedavg, gaussian(sigma=0.001))",
        "none: leaving out small entries proves nothing",
        "lpips: lpips_alex.npz is not in the data folder",
        "cosine (Somebody 2020)",
        "Membership inference",
        "5f1c" * 16,
        "torch",
        "2.13.0",
        'name = "lenet"',
        "fedavg-none-dlm_plus",
        "guess 14.2",
    ):
        assert words in text, words
    assert "dlg (Somebody 2020)" not in text  # it ran


def test_there_is_a_pair_for_every_client_and_a_line_for_every_arm(faces_text: str) -> None:
    alts = [attributes["alt"] or "" for attributes in Page(faces_text).all("img")]
    rebuilt = [alt for alt in alts if alt.startswith("Reconstruction of client-3 with")]
    assert len(rebuilt) == 2 * 2 * 4  # protocols, attacks, arms
    assert sum(alt.startswith("Original of client-3") for alt in alts) == 1 + 4  # the large pair, and once a sheet


def test_the_same_rows_give_the_same_bytes_in_any_order(faces_run: Path, tmp_path: Path, faces_text: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(faces_run, copy)
    rows = RunFolder(copy).rows()
    random.Random(3).shuffle(rows)
    later = [json.loads(row.line()) | {"seconds": 99.0, "started": "later", "finished": "later still"} for row in rows]
    RunFolder(copy).write_rows([Row.parse(json.dumps(row)) for row in later])
    assert build_report(copy, ATTACKS).read_bytes() == faces_text.encode()


def test_hostile_names_are_text_everywhere(write_run: Write, make_row: Make, make_utility: Make) -> None:
    bad = "</title></style><script>alert(1)</script><img src=x onerror=alert(2)>"
    where = {"client": bad, "defense": f"d{bad}", "protocol": f"p{bad}", "dataset": f"s{bad}", "model": f"m{bad}"}
    where |= {"attack": f"a{bad}", "preset": bad, f"key{bad}": bad}
    utility = make_utility("none", [1.0, 0.0], protocol=f"p{bad}", dataset=f"s{bad}", model=f"m{bad}")
    row = make_row(
        where,
        {"psnr": [40.0], "recovered": [1.0], f"metric{bad}": [1.0]},
        reason=bad,
        trial=bad,
        granted=(bad,),
        baselines={bad: {"psnr": [1.0]}},
        unavailable={bad: bad},
    )
    failed = make_row({"client": "x", "attack": f"b{bad}"}, {}, status="failed", reason=bad)
    run = write_run([row, failed, utility], f'# {bad}\n[deployment]\narm = "d{bad}"\n')
    text = build_report(run, {f"z{bad}": Attack}).read_text(encoding="utf-8")
    page = Page(text)
    assert page.all("script") == []
    assert all("onerror" not in attributes for _, attributes in page.tags)
    assert "&lt;script&gt;alert(1)" in text
    assert "<script" not in text.lower()


def test_what_did_not_run_has_no_heading(write_run: Write, make_row: Make) -> None:
    run = write_run([make_row({"client": "a"}, {"psnr": [40.0], "recovered": [1.0]})])
    page = Page(build_report(run, {}).read_text(encoding="utf-8"))
    assert [attributes["id"] for attributes in page.all("section")] == ["verdict", "table", "untested", "appendix"]
    assert [a["href"] for a in page.all("a")][1:] == ["#verdict", "#table", "#untested", "#appendix"]
    assert "gave no result" not in page.text


def test_an_empty_run_says_so(write_run: Write) -> None:
    page = Page(build_report(write_run([]), {}).read_text(encoding="utf-8"))
    assert "No attack has finished" in page.text
    assert [attributes["id"] for attributes in page.all("section")] == ["verdict", "appendix"]


def test_lost_pictures_are_told_and_the_rest_stands(faces_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(faces_run, copy)
    lost = RunFolder(copy).rows()[-1].artifacts["images"]
    (copy / "artifacts" / lost).unlink()
    page = Page(build_report(copy, ATTACKS).read_text(encoding="utf-8"))
    assert f"artifact {lost[:12]}: missing" in page.text
    assert len(page.all("img")) > 100


def test_failures_are_told_with_their_reason(write_run: Write, make_row: Make, make_utility: Make) -> None:
    rows = [
        make_row({"client": "a"}, {"psnr": [40.0], "recovered": [1.0]}),
        make_row({"client": "b"}, {}, status="out_of_memory", reason="asked for 3 GiB"),
        make_row({"client": "a", "attack": "none"}, {}, status="refused", reason="no held-out examples"),
    ]
    text = Page(build_report(write_run(rows), {}).read_text(encoding="utf-8")).text
    assert "fedavg, none, dlm_plus: 1 update out of memory: asked for 3 GiB" in text
    assert "utility: no held-out examples" in text


def test_a_damaged_spec_is_printed_as_it_is(write_run: Write, make_row: Make) -> None:
    run = write_run([make_row({"client": "a"}, {"psnr": [40.0], "recovered": [1.0]})], "this is [not toml")
    assert "this is [not toml" in Page(build_report(run, {}).read_text(encoding="utf-8")).text


def test_the_appendix_opens_tables_and_counts_what_is_noted_per_client(write_run: Write, make_row: Make) -> None:
    run = write_run([])
    known = {
        "split": {"parameters": {"partition": "iid", "alpha": None}, "hash": "abc"},
        "notes": {"restarts": {"a": 0, "b": 3}, "ended": {"a": ["goal"], "b": ["stagnated", "goal"]}, "chunk": 64},
    }
    source = RunFolder(run).put_json(known)
    RunFolder(run).write_rows([make_row({"client": "a"}, {"recovered": [1.0]}, artifacts={"provenance": source})])
    text = Page(build_report(run, {}).read_text(encoding="utf-8")).text
    assert "hashabcpartitioniid" in text
    assert "orl · lenet · fedavg · none · dlm_plus chunk 64; ended goal (2), stagnated (1); restarts 0 to 3" in text


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RefusedError, match="give the folder that an audit wrote"):
        build_report(tmp_path / name)


def test_known_attacks_are_asked_for_late(write_run: Write, make_row: Make) -> None:
    run = write_run([make_row({"client": "a", "attack": "something_else"}, {"psnr": [4.0], "recovered": [0.0]})])
    text = Page(build_report(run).read_text(encoding="utf-8")).text
    assert "dlm_plus" in text  # fedleak has it, and it did not run


def test_what_belongs_together_stays_on_one_line() -> None:
    assert TIED.sub("_", "fedsgd · model.hidden = 16 loses 84.2 %") == "fedsgd_· model.hidden_=_16 loses 84.2_%"
    assert TIED.sub("_", "6 of 10 at 30 dB") == "6_of 10 at 30_dB"
