"""The style sheet: text that can be read in both modes (WCAG 2 AA asks for a contrast of 4.5)."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

Colour = tuple[float, float, float]

CSS = files("fedleak.report").joinpath("report.css").read_text(encoding="utf-8")


def palette(dark: bool) -> dict[str, Colour]:
    light, _, rest = CSS.partition("@media (prefers-color-scheme: dark)")
    found = re.findall(r"--([\w-]+): #([0-9a-f]{6});", light)
    if dark:
        found += re.findall(r"--([\w-]+): #([0-9a-f]{6});", rest.partition("\n* {")[0])
    return {name: tuple(int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)) for name, code in found}  # type: ignore[misc]


def luminance(colour: Colour) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: Colour, b: Colour) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def mixed(share: float, a: Colour, b: Colour) -> Colour:
    return tuple(share * x + (1 - share) * y for x, y in zip(a, b, strict=True))  # type: ignore[return-value]


def test_contrast_by_hand() -> None:
    assert contrast((0, 0, 0), (1, 1, 1)) == pytest.approx(21)


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_can_be_read(dark: bool) -> None:
    colours = palette(dark)
    grounds = ["paper", "card", "severe-wash", "partial-wash", "calm-wash", "unknown-wash"]
    pairs = [(text, ground) for text in ("ink", "soft") for ground in grounds]
    pairs += [(tone, f"{tone}-wash") for tone in ("severe", "partial", "calm", "unknown")]
    pairs += [(tone, "paper") for tone in ("severe", "partial", "link")]
    pairs += [("on-arm", f"a{n}") for n in range(1, 9)] + [(f"a{n}", "paper") for n in range(1, 9)]
    low = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
    assert {pair: value for pair, value in low.items() if value < 4.5} == {}
    for tone in ("severe", "partial", "calm", "unknown"):  # the cells of the table in the verdict
        cell = mixed(0.16, colours[tone], colours["card"])
        assert contrast(colours[tone], cell) >= 4.5
        assert contrast(colours["soft"], cell) >= 4.5


def test_the_names_beside_a_table_of_pictures_stay_off_the_first_picture() -> None:
    margin = re.search(r"\.sheet \{[^}]*margin-left: (-?\d+)px", CSS)
    left = re.search(r"\.sheet tbody th \{[^}]*position: sticky; left: (-?\d+)(?:px)?;", CSS)
    assert margin is not None
    assert left is not None
    assert left[1] == margin[1]  # a column that sticks further to the right covers the frame of its neighbour
