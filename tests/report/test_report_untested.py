"""What the report says it cannot speak about."""

from __future__ import annotations

from fedleak.audit.rows import Row
from fedleak.report.untested import gaps_of


def row(attack: str, reason: str = "") -> Row:
    where = {"protocol": "fedavg", "defense": "none", "attack": attack}
    return Row(trial="t0", where=where, scores={"psnr": [9.0]}, n=1, status="ok", reason=reason)


def test_attacks_that_were_told_what_does_not_fit_are_named_with_one_reason() -> None:
    rows = [row("fedavg_simulation", f"lr is wrong by {number}") for number in (2, 3)]
    rows.append(row("sme"))
    (gap,) = [gap for gap in gaps_of(rows, rows, {}, ()) if "do not fit" in gap.what]
    assert gap.items == ("fedavg, none, fedavg_simulation: 2 updates, such as: lr is wrong by 2",)
    assert not [gap for gap in gaps_of(rows[2:], rows[2:], {}, ()) if "do not fit" in gap.what]


def test_how_many_rounds_were_looked_at_is_said_of_each_protocol() -> None:
    def seen(protocol: str, number: int) -> Row:
        where = {"protocol": protocol, "attack": "dlg", "seed": 0, "dataset": "orl", "round": number}
        return Row(trial="t0", where=where, scores={"psnr": [9.0]}, n=1, status="ok")

    def said(*rows: Row) -> str:
        gaps = gaps_of(rows, rows, {}, (), {"fedsgd": 300, "fedavg": 300, "fedmd": 5})
        return next(gap.what for gap in gaps if gap.what.startswith("Only"))

    three = said(seen("fedsgd", 1), seen("fedavg", 1), seen("fedmd", 5))
    assert "orl, round 1 of 300 (fedsgd and fedavg) and round 5 of 5 (fedmd) were looked at" in three
    assert "and rounds 1 and 2 of 300 were looked at" in said(seen("fedavg", 2), seen("fedavg", 1))
