"""Differences as cells: paired within the same federations, and at the same privacy loss, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from fedleak.audit.rows import Row
from fedleak.errors import RefusedError
from fedleak.reproduction import Table, compared


def table(**given: Any) -> Table:
    base: dict[str, Any] = {"title": "t", "paper": "p", "metrics": ["attack_accuracy"], "spec": {}}
    base |= {"group_by": ["attack", "dataset", "setting", "T0", "defense"], "rename": {"panel": "setting"}}
    return Table.model_validate({**base, "scale": {"smoke": {}}, **given})


def row(attack: str, seed: int, scores: dict[str, list[float]], **where: Any) -> Row:
    full = {"attack": attack, "dataset": "mnist", "seed": seed, "client": "client-0", "panel": "close", **where}
    return Row("t", full, scores, 1, "ok")


def right(count: int, of: int = 10) -> dict[str, list[float]]:
    return {"attack_accuracy": [1.0] * count + [0.0] * (of - count)}


def test_the_gain_is_paired_and_stands_beside_the_published_one() -> None:
    """Seeds differ by 60 points in how easy they are and by none in the gain: the interval does not see the former."""
    made = table(
        paired=[{"name": "gain_over_msa", "against": "msa"}],
        published=[
            {"where": {"setting": "close", "attack": "msa"}, "attack_accuracy": 80.1},
            {"where": {"setting": "close", "attack": "adamsa"}, "attack_accuracy": 83.79},
        ],
    )
    rows = [row("msa", seed, right(20 + 60 * (seed % 2), 100)) for seed in range(4)]
    rows += [row("adamsa", seed, right(30 + 60 * (seed % 2), 100)) for seed in range(4)]
    rows += [row("none", seed, {"utility": [1.0]}, client=None) for seed in range(4)]
    (cell,) = compared("adamsa/x", made, rows)
    assert cell.where == {"attack": "adamsa", "dataset": "mnist", "setting": "close"}
    assert (cell.metric, cell.published, cell.n) == ("gain_over_msa", pytest.approx(3.69), 400)
    assert cell.ours == pytest.approx(10.0)
    assert 0.0 < cell.low < 10.0 < cell.high < 25.0


def test_a_victim_of_one_attack_alone_is_left_out_and_so_is_a_cell_without_a_pair() -> None:
    made = table(paired=[{"name": "gain_over_T0_0", "key": "T0", "against": 0}])
    rows = [row("adamsa", 0, right(4), T0=0), row("adamsa", 0, right(7), T0=3), row("adamsa", 1, right(10), T0=3)]
    rows.append(row("adamsa", 0, right(9), T0=3, panel="open"))
    (cell,) = compared("adamsa/x", made, rows)
    assert (cell.where["T0"], cell.where["setting"], cell.n) == (3, "close", 10)
    assert cell.ours == pytest.approx(30.0)
    assert cell.published is None


def test_what_the_directed_noise_saves_where_both_give_the_attacker_the_same() -> None:
    """Undefended 0.9 of utility and 0.8 for the attacker. 0.6 lies halfway to gaussian's (0.5, 0.4) in seed 0 and
    (0.6, 0.4) in seed 1, and to directed's (0.7, 0.4). Saved: 0.2 - 0.1 and 0.15 - 0.1."""
    made = table(matched=[{"cheap": "directed", "others": ["gaussian"], "attack": "adamsa", "levels": [0.3, 0.6]}])
    rows = []
    places = {"none": (9, 8), "gaussian(variance=1)": (5, 4), "directed(gamma=1)": (7, 4)}
    for seed in range(2):
        for defense, (useful, got) in places.items():
            kept = useful + (seed if "gaussian" in defense else 0)
            rows.append(row("adamsa", seed, right(got), defense=defense))
            utility = {"utility": [1.0] * kept + [0.0] * (10 - kept)}
            rows.append(row("none", seed, utility, defense=defense, client=None))
    (cell,) = compared("adamsa/x", made, rows)
    assert cell.where == {
        "attack": "adamsa",
        "dataset": "mnist",
        "setting": "close",
        "defense": "directed",
        "privacy_loss": 0.6,
    }
    assert (cell.metric, cell.n) == ("utility_saved_over_gaussian", 2)
    assert (cell.low, cell.ours, cell.high) == (pytest.approx(5.0), pytest.approx(7.5), pytest.approx(10.0))


def test_some_panels_alone() -> None:
    made = table(panel={"close": {}, "open": {}})
    assert list(made.parts("smoke")) == ["close", "open"]
    assert list(made.parts("smoke", ["open"])) == ["open"]
    with pytest.raises(RefusedError, match="panel='opne': choose from close, open"):
        made.parts("smoke", ["opne"])
    with pytest.raises(RefusedError, match="this table has none"):
        table().parts("smoke", ["close"])


def test_a_difference_may_cross_protocol_and_setting_where_the_table_says_so() -> None:
    """DLM+ reads weights, DLG gradients of the same images. By hand: of four images DLM+ gets 4, DLG 3 with the same
    search and 2 as the paper ran it."""
    keys = ["attack", "dataset", "protocol", "setting"]
    pairs = [
        {"name": "same", "against": "dlg", "but": {"protocol": "fedsgd"}},
        {"name": "across", "against": "dlg", "but": {"protocol": "fedsgd", "setting": "paper"}},
    ]
    made = table(
        metrics=["acc"],
        group_by=keys,
        rename={},
        paired=[{**one, "metric": "acc", "where": {"attack": "dlm_plus", "setting": "strong"}} for one in pairs],
        published=[{"where": {"attack": "dlg"}, "acc": 64}, {"where": {"attack": "dlm_plus"}, "acc": 92}],
    )

    def tried(attack: str, protocol: str, setting: str, recovered: list[float]) -> list[Row]:
        where = {"attack": attack, "dataset": "mnist", "protocol": protocol, "setting": setting, "seed": 0}
        return [
            Row("t", {**where, "client": f"client-{at}"}, {"recovered": [got]}, 1, "ok")
            for at, got in enumerate(recovered)
        ]

    rows = [
        *tried("dlg", "fedsgd", "paper", [1, 1, 0, 0]),
        *tried("dlg", "fedsgd", "strong", [1, 1, 1, 0]),
        *tried("dlm_plus", "fedavg", "paper", [0, 0, 0, 0]),
        *tried("dlm_plus", "fedavg", "strong", [1, 1, 1, 1]),
    ]
    same, across = compared("dlm/x", made, rows)
    assert {cell.where["setting"] for cell in (same, across)} == {"strong"}
    assert [(cell.metric, cell.ours, cell.published, cell.n) for cell in (same, across)] == [
        ("same", 25.0, 28.0, 4),
        ("across", 50.0, 28.0, 4),
    ]
