"""The statistics and the smoke scale of the FedAvg leakage tables."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from fedleak.audit.rows import Row
from fedleak.audit.spec import make_spec
from fedleak.audit.store import RunFolder
from fedleak.reproduction import Evidence, Table, cells, load_table
from fedleak.reproduction.statistics import STATISTICS

METHODS = {"prior", "no_prior", "shared", "fedsgd_epoch", "fedsgd"}


def row(client: str, scores: dict[str, list[float]], artifacts: dict[str, str] | None = None) -> Row:
    where = {"attack": "fedavg_simulation", "dataset": "mnist", "seed": 0, "client": client}
    return Row("t", where, scores, 1, "ok", threshold=20.0, artifacts=artifacts or {})


def table(*metrics: str) -> Table:
    return Table.model_validate(
        {"title": "t", "paper": "p", "metrics": list(metrics), "spec": {}, "scale": {"smoke": {}}}
    )


def test_label_errors_are_counted_per_client() -> None:
    """5 wrong labels of one client and 2 of another are 3.5 on average, whatever the number of examples."""
    rows = [row("a", {"label_errors": [1.0] * 5 + [0.0] * 45}), row("b", {"label_errors": [1.0, 1.0, 0.0]})]
    (found,), failed = cells("fedavg_leakage/x", table("label_errors"), rows)
    assert (found.ours, found.n, failed) == (3.5, 2, [])


def test_recovered_is_a_percentage_over_all_images() -> None:
    rows = [
        row("a", {"recovered": [1.0, 0.0], "psnr": [30.0, 10.0]}),
        row("b", {"recovered": [1.0, 1.0], "psnr": [21.0, 23.0]}),
    ]
    found = {cell.metric: cell.ours for cell in cells("fedavg_leakage/x", table("recovered_pct", "psnr"), rows)[0]}
    assert found == {"recovered_pct": 75.0, "psnr": 21.0}


def test_single_epochs_are_judged_before_they_are_averaged(tmp_path: Path) -> None:
    """Two epochs 0.1 and 0.01 away from the original are 20 and 40 dB; the mean of them stands behind them."""
    original = torch.full((1, 1, 2, 2), 0.5)
    shots = torch.stack([original + 0.1, original - 0.01, original])
    folder = RunFolder(tmp_path)
    name = folder.put(save({"original": original, "snapshots": shots, "snapshot_steps": torch.tensor([0, 1, 2])}))
    one = row("a", {"psnr": [50.0]}, {"images": name})
    evidence = Evidence([tmp_path])
    known = STATISTICS["fedavg_leakage"]
    assert known["psnr_first_epoch"].of(one, evidence) == pytest.approx([20.0], abs=1e-3)
    assert known["psnr_last_epoch"].of(one, evidence) == pytest.approx([40.0], abs=1e-3)
    assert known["psnr_epoch"].of(one, evidence) == pytest.approx([30.0], abs=1e-3)
    assert known["psnr_epoch"].of(row("a", {}), evidence) == []


@pytest.mark.parametrize("name", ["table1", "table3"])
def test_every_method_stands_in_the_smoke_table(name: str) -> None:
    (tables, instead) = load_table(f"fedavg_leakage/{name}").parts("smoke")[""]
    assert instead is not None
    for given in (tables, instead):
        (point,) = make_spec(given).points
        assert {choice.attack.method for choice in point.attacks} == METHODS
        assert (point.protocol.epochs, point.protocol.batch_size, point.data.per_client) == (2, 5, 10)


def test_the_full_table_has_the_papers_rows_and_the_digits_stand_in_under_their_own_name() -> None:
    (tables, instead) = load_table("fedavg_leakage/table1").parts("full")[""]
    rows = {(1, 5), (5, 5), (10, 10), (10, 5), (10, 1)}
    for given, grey in ((tables, "femnist"), (instead, "mnist")):
        assert given is not None
        points = make_spec(given).points
        found = {(p.data.name, p.protocol.epochs, p.protocol.batch_size) for p in points}
        assert found == {(name, *row) for name in (grey, "cifar100") for row in rows}
        assert all(p.model.name == ("cnn_cifar100" if p.data.name == "cifar100" else "cnn_femnist") for p in points)
        clients = {p.data.clients for p in points if (p.protocol.epochs, p.protocol.batch_size) == (10, 5)}
        assert clients == {32}


def test_published_numbers_are_those_of_the_paper() -> None:
    table1, table2, table4 = (load_table(f"fedavg_leakage/{name}") for name in ("table1", "table2", "table4"))
    where = {"dataset": "cifar100", "E": 10, "m": 5, "setting": "released"}
    for method, recovered, psnr in (
        ("prior", 58.8, 19.8),
        ("no_prior", 56.4, 19.6),
        ("shared", 15.7, 16.4),
        ("fedsgd", 0.4, 13.2),
    ):
        assert table1.published_number({**where, "method": method}, "recovered_pct") == recovered
        assert table1.published_number({**where, "method": method}, "psnr") == psnr
    assert table1.published_number({**where, "dataset": "mnist", "method": "prior"}, "psnr") is None
    assert table1.published_number({**where, "setting": "strong", "method": "prior"}, "psnr") is None
    counted = {**where, "attack": "label_counts"}
    assert table2.published_number({**counted, "method": "interpolated"}, "label_errors") == 4.9
    assert table2.published_number({**counted, "method": "geng_server"}, "label_errors") == 12.2
    assert table4.published_number({**where, "g": "conv_max", "norm": "l2"}, "recovered_pct") == 58.8
