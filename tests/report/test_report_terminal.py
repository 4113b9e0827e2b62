"""The summary on a terminal."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from fedleak.audit.rows import Row
from fedleak.audit.store import RunFolder
from fedleak.report.terminal import summary_table


def printed(rows: list[Row], width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(summary_table(rows))
    text = console.file
    assert isinstance(text, io.StringIO)
    return text.getvalue()


def test_it_fits_into_80_columns_with_every_number(faces_run: Path) -> None:
    text = printed(RunFolder(faces_run).rows())
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    line = next(line for line in text.splitlines() if "dlm_plus" in line)
    assert line.split() == ["dlm_plus", "10", "of", "10", "69", "to", "100", "%", "47.6", "14.2", "0.99", "50", "%"]
    assert text.index("fedsgd") < text.index("fedavg")
    assert "1 diverged" in text


def test_markup_in_a_name_is_text(make_row: Callable[..., Row]) -> None:
    text = printed([make_row({"defense": "[red]x[/red]", "client": "a"}, {"recovered": [1.0]})])
    assert "[red]x[/red]" in text


def test_missing_numbers_are_dashes(make_row: Callable[..., Row]) -> None:
    text = printed([make_row({"client": "a"}, {}, status="failed")])
    assert "1 failed" in text
    assert text.count("-") >= 6


def test_copies_of_models_have_their_fidelity_and_no_pixels(make_row: Callable[..., Row]) -> None:
    scores = {"attack_accuracy": [1.0, 0.0], "fidelity": [1.0, 1.0], "victim_accuracy": [1.0, 0.0]}
    copied = make_row({"client": "a", "attack": "msa", "protocol": "fedmd"}, scores)
    head, *lines = printed([copied]).splitlines()
    assert head.split() == ["Defense", "Attack", "Recovered", "95", "%", "Guess", "Fidelity", "Accuracy"]
    assert "100 %" in next(line for line in lines if "msa" in line)
    seen = make_row({"client": "a"}, {"recovered": [1.0], "psnr": [40.0], "ssim": [0.9]})
    both = printed([copied, seen])
    assert "PSNR" in both
    assert max(map(len, both.splitlines())) <= 80


def test_swept_settings_are_named(make_row: Callable[..., Row]) -> None:
    rows = [make_row({"client": "a", "protocol.lr": lr}, {"recovered": [1.0]}) for lr in (0.1, 0.2)]
    text = printed(rows, width=120)
    assert "fedavg, protocol.lr = 0.1" in text
    assert "fedavg, protocol.lr = 0.2" in text


def test_two_recipes_of_one_attack_are_told_apart(make_row: Callable[..., Row]) -> None:
    recipes: list[dict[str, str]] = [
        {"preset": "paper"},
        {"preset": "strong"},
        {"preset": "strong", "attack.norm": "layer"},
    ]
    rows = [make_row({"client": "a", **own}, {"recovered": [1.0]}) for own in recipes]
    text = printed(rows, width=160)
    assert "preset = paper" in text
    assert "attack.norm = layer, preset = strong" in text
    assert text.count("preset = strong") == 2
    assert "fedavg, " not in text  # no setting of the federation


def test_the_only_preset_is_not_worth_a_word(make_row: Callable[..., Row]) -> None:
    assert "preset" not in printed([make_row({"client": "a", "preset": "strong"}, {"recovered": [1.0]})])
