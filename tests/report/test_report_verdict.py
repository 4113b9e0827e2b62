"""The first thing a reader sees must be true, whatever happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fedleak.audit.rows import Row
from fedleak.report.arms import arms_of
from fedleak.report.tables import summary
from fedleak.report.verdict import Verdict, judge

Make = Callable[..., Row]


def verdict_of(rows: Sequence[Row], deployed: str | None = None, known: Any = None) -> Verdict:
    return judge(arms_of(summary(rows), rows, lambda row: known or {}, deployed), deployed)


def victims(make_row: Make, count: int, recovered: int, **where: Any) -> list[Row]:
    return [
        make_row(
            {"client": f"client-{c}", **where},
            {"psnr": [45.0 if c < recovered else 12.0], "recovered": [float(c < recovered)]},
            granted=("samples",),
        )
        for c in range(count)
    ]


def test_worst_undefended_and_best_defended_case(make_row: Make, make_utility: Make) -> None:
    rows = [
        *victims(make_row, 10, 10),
        *victims(make_row, 10, 3, attack="dlg"),
        *victims(make_row, 10, 4, defense="gaussian(sigma=0.001)"),
        *victims(make_row, 10, 0, defense="gaussian(sigma=0.01)"),
        make_utility("none", [1.0] * 60 + [0.0] * 40),
        make_utility("gaussian(sigma=0.001)", [1.0] * 59 + [0.0] * 41),
        make_utility("gaussian(sigma=0.01)", [1.0] * 57 + [0.0] * 43),
    ]
    found = verdict_of(rows)
    assert found.level == "severe"
    assert found.badge == "Private faces recovered"
    assert found.sentences == (
        "With no defense, dlm_plus recovered 10 of 10 faces from the weights that 10 clients sent in fedavg, "
        "knowing only the number of images.",
        "gaussian(sigma=0.01) stops it (0 of 10 above 30 dB), at a cost of 3.0 points of test accuracy "
        "(57 % instead of 60 %).",
    )


def test_a_defense_that_only_helps_is_not_said_to_stop(make_row: Make) -> None:
    rows = [*victims(make_row, 10, 10), *victims(make_row, 10, 4, defense="clip(norm=1)")]
    assert verdict_of(rows).sentences[1] == (
        "The strongest defense tried, clip(norm=1), still lets dlm_plus recover 4 of 10; "
        "what it costs in test accuracy was not measured."
    )


def test_a_defense_is_judged_by_the_strongest_attack_on_it(make_row: Make) -> None:
    rows = [
        *victims(make_row, 10, 10, attack="dlg"),
        *victims(make_row, 10, 0, attack="dlg", defense="clip(norm=1)"),
        *victims(make_row, 10, 10, attack="dlm_plus", defense="clip(norm=1)"),
    ]
    assert (
        verdict_of(rows)
        .sentences[1]
        .startswith("No defense that was tried lowers this: with clip(norm=1), dlm_plus recovers 10 of 10")
    )


def test_of_two_attacks_that_recover_all_the_one_that_was_told_less_is_named(make_row: Make) -> None:
    known = [make_row({"client": "a", "attack": "dlg"}, {"psnr": [60.0], "recovered": [1.0]}, granted=("lr", "epochs"))]
    blind = [make_row({"client": "a", "attack": "dlm_plus"}, {"psnr": [50.0], "recovered": [1.0]})]
    assert "dlm_plus recovered 1 of 1" in verdict_of([*known, *blind]).sentences[0]


def test_nothing_recovered_is_no_proof(make_row: Make) -> None:
    found = verdict_of([*victims(make_row, 10, 0), *victims(make_row, 10, 0, attack="dlg")])
    assert found.level == "unrecovered"
    assert found.badge == "No faces recovered by these attacks"
    assert found.sentences == (
        "With no defense, none of the 10 faces was recovered from the weights that 10 clients sent in fedavg by the "
        "attacks that were run (dlg and dlm_plus). That is no proof that nothing leaks: a stronger attack may still "
        "succeed.",
    )
    assert any("can still be recognisable" in text for text in found.caveats)


def test_a_leak_under_a_defense_is_told_where_nothing_leaks_without(make_row: Make) -> None:
    found = verdict_of([*victims(make_row, 4, 0), *victims(make_row, 4, 2, defense="round(decimals=3)")])
    assert found.sentences[0].startswith("With round(decimals=3), dlm_plus recovered 2 of 4 faces")


def test_only_failures_give_no_verdict(make_row: Make) -> None:
    rows = [make_row({"client": "a"}, {}, status="failed"), make_row({"client": "b"}, {}, status="out_of_memory")]
    found = verdict_of(rows)
    assert (found.level, found.badge) == ("unknown", "No verdict")
    assert found.sentences == (
        "None of the 2 attacked updates could be judged, so nothing can be said about what leaks.",
    )
    assert found.caveats == ("Of 2 attacked updates, 1 failed and 1 ran out of memory.",)


def test_no_rows_at_all() -> None:
    assert verdict_of([]).sentences == (
        "No attack has finished in this run folder, so nothing can be said about what leaks.",
    )


def test_recovered_by_guessing_is_not_a_leak(make_row: Make) -> None:
    easy = {"mean_image": {"recovered": [1.0], "psnr": [31.0]}}
    rows = [make_row({"client": c}, {"recovered": [1.0], "psnr": [31.0]}, baselines=easy) for c in "abc"]
    found = verdict_of(rows)
    assert (found.level, found.badge) == ("unrecovered", "Recovered no more than a guess")
    assert any("reaches 100 % at the same threshold (mean image)" in text for text in found.caveats)


def test_few_images_and_one_seed_are_said(make_row: Make) -> None:
    caveats = verdict_of(victims(make_row, 10, 10)).caveats
    assert "10 images are few: 10 of 10 is compatible with a true share from 69 to 100 % (95 %)." in caveats
    assert any(text.startswith("One seed ran") for text in caveats)
    many = [row for seed in range(4) for row in victims(make_row, 10, 10, seed=seed)]
    assert verdict_of(many).caveats == ()


def test_diverged_victims_are_said(make_row: Make) -> None:
    rows = [*victims(make_row, 3, 3), make_row({"client": "x"}, {"recovered": [0.0]}, status="diverged")]
    assert "Of 4 attacked updates, 1 diverged (judged by the last finite image)." in verdict_of(rows).caveats


def test_the_cost_of_a_model_that_did_not_learn_is_not_told(make_row: Make, make_utility: Make) -> None:
    rows = [
        *victims(make_row, 4, 4),
        *victims(make_row, 4, 0, defense="clip(norm=1)"),
        make_utility("none", [0.0] * 40),
        make_utility("clip(norm=1)", [0.0] * 40),
    ]
    found = verdict_of(rows, known={"utility_by_round": [0.025, 0.03]})
    assert "cannot be told, because the undefended model hardly learned" in found.sentences[1]
    assert any("2.5 % before and 3 % after training in fedavg" in text for text in found.caveats)


def test_the_deployed_arm_has_its_own_line_and_decides_the_colour(make_row: Make, make_utility: Make) -> None:
    rows = [
        *victims(make_row, 4, 4),
        *victims(make_row, 4, 1, defense="clip(norm=1)"),
        make_utility("clip(norm=1)", [1.0, 0.0]),
    ]
    found = verdict_of(rows, deployed="clip(norm=1)")
    assert found.deployed == (
        (
            "partial",
            "As deployed (fedavg, clip(norm=1)): dlm_plus recovered 1 of 4 faces. "
            "The model reaches 50 % test accuracy.",
        ),
    )
    assert (found.level, found.badge) == ("partial", "As deployed: some private faces recovered")


def test_a_deployed_arm_that_did_not_run_is_unknown(make_row: Make) -> None:
    found = verdict_of(victims(make_row, 4, 4), deployed="clip(norm=1)")
    assert found.level == "unknown"
    assert found.deployed[0][1] == "As deployed (clip(norm=1)): no trial of this arm has finished: nothing is known."


@pytest.mark.parametrize(("recovered", "level"), [(0, "unrecovered"), (1, "partial"), (4, "partial"), (5, "severe")])
def test_levels(make_row: Make, recovered: int, level: str) -> None:
    assert verdict_of(victims(make_row, 10, recovered)).level == level


def test_the_swept_setting_of_the_worst_case_is_named(make_row: Make) -> None:
    rows = [*victims(make_row, 4, 4, **{"protocol.lr": 0.1}), *victims(make_row, 4, 1, **{"protocol.lr": 0.01})]
    assert "sent in fedavg (protocol.lr = 0.1), knowing" in verdict_of(rows).sentences[0]


def test_cost_is_paired_by_seed_and_test_image(make_row: Make, make_utility: Make) -> None:
    rows = [
        *(
            row
            for seed in (0, 1)
            for d in ("none", "clip(norm=1)")
            for row in victims(make_row, 2, 2, defense=d, seed=seed)
        ),
        make_utility("none", [1.0, 1.0, 0.0, 0.0], seed=0),
        make_utility("none", [1.0, 1.0, 1.0, 0.0], seed=1),
        make_utility("clip(norm=1)", [1.0, 0.0, 0.0, 0.0], seed=0),
        make_utility("clip(norm=1)", [1.0, 1.0, 1.0, 0.0], seed=1),
    ]
    free, clipped = arms_of(summary(rows), rows, lambda row: {})
    assert free.cost is None
    assert clipped.cost is not None
    assert clipped.cost.mean == pytest.approx(1 / 8)


def structured(make_row: Make, ssim: Sequence[float], **where: object) -> list[Row]:
    """Nothing above the threshold, but so much of the structure; a guess gets 0.4 of it."""
    return [
        make_row(
            {"client": f"client-{c}", **where},
            {"psnr": [14.0], "recovered": [0.0], "ssim": [value]},
            baselines={"mean_image": {"psnr": [17.0], "recovered": [0.0], "ssim": [0.4]}},
            granted=("samples",),
        )
        for c, value in enumerate(ssim)
    ]


def test_a_defense_that_leaves_the_faces_recognisable_is_not_simply_said_to_stop(make_row: Make) -> None:
    """PSNR counts nothing above the threshold, and yet every image has more structure than a guess."""
    rows = [*victims(make_row, 10, 10), *structured(make_row, [0.55, 0.6, 0.65] * 3, defense="sparsify(fraction=0.9)")]
    assert (
        verdict_of(rows)
        .sentences[1]
        .endswith(
            "What dlm_plus still gets is more like the originals than a guess (SSIM 0.60 against 0.40): "
            "look at the pictures before you call that safe."
        )
    )
    deployed = verdict_of(rows, "sparsify(fraction=0.9)").deployed[0][1]
    assert "SSIM 0.60 against 0.40" in deployed


def test_structure_that_a_guess_has_too_is_not_mentioned(make_row: Make) -> None:
    rows = [*victims(make_row, 10, 10), *structured(make_row, [0.2, 0.41, 0.7] * 3, defense="sparsify(fraction=0.9)")]
    assert "SSIM" not in verdict_of(rows).sentences[1]
