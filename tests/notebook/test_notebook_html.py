"""What a notebook shows: pictures that are inside the page, numbers, and nothing that could run."""

from __future__ import annotations

import base64
import io
import math
from html.parser import HTMLParser

import pytest
import torch
from PIL import Image

from fedleak.audit.confidence import Confidence
from fedleak.audit.rows import Row
from fedleak.metrics import Judgement
from fedleak.notebook import SHOWN, finding_html, judgement_html, picture_url, row_html
from fedleak.types import (
    LabelCounts,
    ModelSpec,
    Reconstruction,
    RecoveredCounts,
    RecoveredImages,
    StolenModel,
    StolenModels,
    Weights,
)


class Page(HTMLParser):
    """The tags, the pictures and the text; every tag that is opened must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.pictures: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "img":
            self.pictures.append(dict(attrs)["src"] or "")
        else:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def decoded(url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,"))))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_is_inside_the_page_bit_for_bit(channels: int) -> None:
    levels = torch.arange(channels * 6).reshape(channels, 2, 3) * 10
    image = decoded(picture_url(levels / 255))
    assert image.size == (3, 2)
    pixels = torch.tensor(list(image.tobytes()))
    assert torch.equal(pixels.reshape(2, 3, channels).permute(2, 0, 1), levels)


def test_what_is_no_picture_is_drawn_all_the_same() -> None:
    wild = torch.tensor([[[math.nan, math.inf], [-math.inf, 7.0]]])
    assert list(decoded(picture_url(wild)).tobytes()) == [0, 255, 0, 255]


def test_every_victim_shows_its_pictures_or_its_reason() -> None:
    pictures = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    found = RecoveredImages("a<script>", 1, pictures, torch.tensor([3, 1]), 0.25)
    refused = RecoveredImages("b", 1, torch.zeros(0, 1, 4, 4), None, math.nan, "refused", "it sent <nothing>")
    page = Page(finding_html(Reconstruction((found, refused))))
    assert len(page.pictures) == 2
    assert "script" not in page.tags, "a sender's name is text"
    assert "a<script>, round 1; objective 0.25" in page.text
    assert "label 3" in page.text
    assert "it sent <nothing>" in page.text


def test_many_pictures_are_cut_off_and_it_says_so() -> None:
    many = RecoveredImages("a", 1, torch.zeros(SHOWN + 4, 1, 2, 2), None, math.nan)
    page = Page(finding_html(Reconstruction((many,))))
    assert len(page.pictures) == SHOWN
    assert "and 4 more" in page.text


def test_findings_that_are_no_pictures() -> None:
    counts = Page(finding_html(LabelCounts((RecoveredCounts("a", 2, torch.tensor([0, 3, 1])),))))
    assert "1321" in counts.text.replace("labelexamples", ""), "label 1 three times, label 2 once"
    stolen = StolenModel("a", 1, ModelSpec("mlp"), Weights({}))
    assert "imitation" in Page(finding_html(StolenModels((stolen,)))).text
    assert "no victims" in Page(finding_html(Reconstruction(()))).text


def test_a_judgement_shows_scores_beside_those_of_nobody() -> None:
    made = Judgement(
        {"psnr": [30.0, 40.0]},
        {"noise": {"psnr": [5.0, 7.0]}},
        torch.zeros(2, 1, 2, 2),
        torch.ones(2, 1, 2, 2),
        unavailable={"lpips": "no weights"},
    )
    page = Page(judgement_html(made))
    assert "psnr352noise 6" in page.text
    assert "no weights" in page.text
    assert len(page.pictures) == 4


def test_a_row_shows_where_what_and_why() -> None:
    row = Row("t", {"dataset": "orl", "seed": 0}, {"psnr": [1.0, 2.0]}, 2, "diverged", "no <start>")
    text = Page(row_html(row)).text
    assert "datasetorl" in text
    assert "diverged: no <start>" in text
    assert "psnr1.5 (2)" in text


def test_a_confidence_shows_what_is_believed() -> None:
    sure = Confidence("a", 1, torch.zeros(2, 1, 2, 2), 1e-6, (60.0, 5.0), 1.0, 3.0)
    page = Page(sure._repr_html_())
    assert len(page.pictures) == 2
    assert page.text.count("not believed") == 1
    assert page.text.count("believed: starts agree") == 2
