"""The confidence gap: four histograms, each a share of its own predictions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from fedleak.audit.rows import Row
from fedleak.audit.store import RunFolder
from fedleak.report.arms import arms_of
from fedleak.report.blobs import Blobs
from fedleak.report.confidence import BINS, confidence_panels, histogram
from fedleak.report.tables import summary

Make = Callable[..., Row]
FOUR = {
    "server on public": [0.0, 1.0, 2.0, 3.0],
    "server on private": [3.0, 3.0],
    "client on public": [1.0],
    "client on private": [0.0, 0.0, 0.0, 0.05],
}


def run_of(folder: RunFolder, make_row: Make, **where: object) -> list[Row]:
    blob = folder.put(save({name: np.asarray(values, np.float32) for name, values in FOUR.items()}))
    rows = [make_row({"attack": "none", **where}, {"utility": [1.0]}, artifacts={"entropies": blob})]
    return [*rows, make_row({"client": "a", **where}, {"recovered": [1.0]})]


def test_a_histogram_is_shares_that_sum_to_one() -> None:
    shares = histogram(np.asarray([0.0, 0.0, 3.0, 1.5]), 3.0)
    assert len(shares) == BINS
    assert shares.sum() == pytest.approx(1.0)
    assert (shares[0], shares[BINS // 2], shares[-1]) == (0.5, 0.25, 0.25)


def test_four_curves_server_and_client_public_and_private(tmp_path: Path, make_row: Make) -> None:
    folder = RunFolder(tmp_path)
    rows = run_of(folder, make_row)
    (panel,) = confidence_panels([("fedmd", arms_of(summary(rows), rows, lambda row: {}))], rows, Blobs(folder))
    assert [(curve.name, curve.dashed) for curve in panel.curves] == [
        ("server on public", False),
        ("server on private", True),
        ("client on public", False),
        ("client on private", True),
    ]
    assert len({curve.colour for curve in panel.curves}) == 2
    assert panel.title == "fedmd · no defense"
    assert panel.says == (
        "median entropy in nats: server on public 1.500, server on private 3.000, client on public 1.000, "
        "client on private 0.000"
    )
    private = panel.curves[1].points.split()
    assert private[-2] == f"{panel.x.at(3.0):g},{panel.y.at(1.0):g}"  # all that the server says of them is a guess
    assert private[0].endswith(f",{panel.y.at(0.0):g}")


def test_trials_of_one_federation_count_once_and_seeds_are_pooled(tmp_path: Path, make_row: Make) -> None:
    folder = RunFolder(tmp_path)
    rows = [*run_of(folder, make_row, seed=0), *run_of(folder, make_row, seed=0)]
    other = folder.put(save({"client on public": np.asarray([9.0, np.nan, 9.0], np.float32)}))
    rows.append(make_row({"attack": "none", "seed": 1}, {"utility": [1.0]}, artifacts={"entropies": other}))
    (panel,) = confidence_panels([("fedmd", arms_of(summary(rows), rows, lambda row: {}))], rows, Blobs(folder))
    assert "client on public 9.000" in panel.says  # of 1, 9, 9; not of 1, 1, 9, 9, and nothing that is not finite


def test_only_without_a_defense_and_as_deployed(tmp_path: Path, make_row: Make) -> None:
    folder = RunFolder(tmp_path)
    names = ("none", "label_only", "round(decimals=1)")
    rows = [row for name in names for row in run_of(folder, make_row, defense=name)]

    def titles(deployed: str | None) -> list[str]:
        arms = arms_of(summary(rows), rows, lambda row: {}, deployed)
        return [panel.title for panel in confidence_panels([("fedmd", arms)], rows, Blobs(folder))]

    assert titles(None) == ["fedmd · no defense"]
    assert titles("label_only") == ["fedmd · no defense", "fedmd · label_only"]


def test_nothing_recorded_nothing_drawn(tmp_path: Path, make_row: Make) -> None:
    rows = [make_row({"client": "a"}, {"recovered": [1.0]}), make_row({"attack": "none"}, {"utility": [1.0]})]
    arms = arms_of(summary(rows), rows, lambda row: {})
    assert confidence_panels([("fedavg", arms)], rows, Blobs(RunFolder(tmp_path))) == []
