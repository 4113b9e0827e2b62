"""What the verdict says of pictures of people, of copied models and of label counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from findings import copy, counts, people

from fedleak.audit.rows import Row
from fedleak.report.arms import arms_of
from fedleak.report.tables import summary
from fedleak.report.verdict import Verdict, judge

Make = Callable[..., Row]
FACTS = {"twins": 12, "chosen_client_right": 0.95, "upper_bound_accuracy": 0.7, "upper_bound_round": 4}
MEMBERS = {"split": {"parameters": {"clients": 4}}}


def verdict_of(rows: Sequence[Row], deployed: str | None = None, facts: Any = None) -> Verdict:
    found = arms_of(summary(rows), rows, lambda row: MEMBERS, deployed)
    return judge(found, deployed, lambda row: FACTS if facts is None else facts)


def test_pictures_of_people(make_row: Make, make_utility: Make) -> None:
    noisy = "gaussian(sigma=5)"
    rows = [
        people(make_row, hits=17),
        people(make_row, hits=3, attack="tbi"),
        people(make_row, hits=9, defense="label_only"),
        people(make_row, hits=2, defense=noisy),
        # The mean of four clients' models: shares, not 0 or 1.
        make_utility("none", [0.75, 0.5, 1.0, 0.75], protocol="fedmd"),
        make_utility(noisy, [0.5, 0.5, 0.75, 0.25], protocol="fedmd"),
    ]
    found = verdict_of(rows)
    assert (found.level, found.badge) == ("severe", "Pictures of private people recovered")
    first, second, third = found.sentences
    assert first == (
        "With no defense, pli recovered pictures of 17 of 20 people from the predictions that 4 clients sent in fedmd, "
        "knowing nothing but the public images and what crossed the wire."
    )
    assert second.startswith(
        "Its prior alone, which saw nothing of what was sent, reaches 2 of 20: the attack adds 75.0 points ("
    )
    assert second.endswith(
        ", 95 %); SSIM 0.50 against 0.30. It took the picture from a client that holds the person in 95 % of the cases."
    )
    assert third == (
        "gaussian(sigma=5) stops it (2 of 20 people, no more than a guess), "
        "at a cost of 25.0 points of test accuracy (50 % instead of 75 %)."
    )
    assert (
        "12 private images have a public twin in fedmd (the same picture as the public sees it): "
        "part of the success may be theirs."
    ) in found.caveats


def test_without_public_twins_the_report_says_so(make_row: Make) -> None:
    found = verdict_of([people(make_row, hits=17)], facts={"twins": 0})
    assert (
        "No private image has a public twin in fedmd: none of the public images was made from a private one."
        in found.caveats
    )
    assert not any("twin" in text for text in verdict_of([people(make_row, hits=17)], facts={}).caveats)


def test_what_the_attacker_knew_of_the_labels(make_row: Make) -> None:
    row = people(make_row, hits=17, dataset="digits")
    told = make_row(row.where, row.scores, baselines=row.baselines, granted=("target_labels",))
    assert verdict_of([told]).sentences[0] == (
        "With no defense, pli recovered pictures of 17 of 20 classes from the predictions that 4 clients sent in "
        "fedmd, knowing only the public images and which labels the clients hold."
    )


def test_pictures_that_the_prior_makes_too_are_no_leak(make_row: Make) -> None:
    found = verdict_of([people(make_row, hits=2), people(make_row, hits=2, defense="label_only")], facts={})
    assert (found.level, found.badge) == ("unrecovered", "Recognised no more than a guess")
    assert verdict_of([people(make_row, hits=0)]).badge == "No people recognised in pictures"
    assert found.sentences[0] == (
        "With no defense, pli recovered pictures of 2 of 20 people from the predictions that 4 clients sent in fedmd: "
        "no more than a guess (2 of 20: the prior of the attack, before it saw a message). That is no proof that "
        "nothing leaks: a stronger attack may still succeed."
    )
    assert len(found.sentences) == 2  # what the prior reaches; no word about a defense against nothing


def test_one_more_than_the_prior_may_be_chance(make_row: Make) -> None:
    found = verdict_of([people(make_row, hits=3)])
    assert found.level == "unrecovered"
    assert "pictures of 3 of 20 people" in found.sentences[0]
    assert (
        "fedmd: not clearly more than a guess (2 of 20: the prior of the attack, before it saw a message). "
        "That is no proof"
    ) in found.sentences[0]


def test_a_copied_model(make_row: Make, make_utility: Make) -> None:
    rows = [
        copy(make_row, right=63, victim=65),
        copy(make_row, right=40, victim=60, defense="label_only"),
        make_utility("none", [1.0] * 65 + [0.0] * 35, protocol="fedmd"),
        make_utility("label_only", [1.0] * 64 + [0.0] * 36, protocol="fedmd"),
    ]
    found = verdict_of(rows)
    assert (found.level, found.badge) == ("severe", "Models copied")
    assert found.sentences == (
        "With no defense, msa copied the model of 1 client from the predictions that it sent in fedmd, knowing nothing "
        "but the public images and what crossed the wire: the copy is 63 % accurate where the victim is 65 %, agreeing "
        "with it on 80 % of the test images. Naming always the commonest class is right for 10 %.",
        "The strongest defense tried, label_only, still lets msa make a copy that is 40 % accurate where the victim is "
        "60 %, agreeing with it on 80 % of the test images, at a cost of 1.0 point of test accuracy "
        "(64 % instead of 65 %).",
    )


def test_several_copies_are_a_mean_and_a_defense_can_stop_them(make_row: Make) -> None:
    rows = [
        *(copy(make_row, right=60 + 6 * c, victim=65, client=f"client-{c}") for c in range(2)),
        *(copy(make_row, right=11, victim=65, defense="one_shot", client=f"client-{c}") for c in range(2)),
    ]
    first, second = verdict_of(rows).sentences
    assert first.startswith(
        "With no defense, msa copied the models of 2 clients from the predictions that they sent in fedmd, "
    )
    assert "on average the copies are 63 % accurate where the victims are 65 %, agreeing with them on 80 %" in first
    assert second == (
        "one_shot stops it (the copies are 11 % accurate, not clearly more than a guess); "
        "what it costs in test accuracy was not measured."
    )


def test_a_copy_that_is_no_better_than_a_guess(make_row: Make) -> None:
    found = verdict_of([copy(make_row, right=11, victim=65)])
    assert found.sentences == (
        "With no defense, the copy that msa made from the predictions that 1 client sent in fedmd is 11 % accurate "
        "where the victim is 65 %, agreeing with it on 80 % of the test images: not clearly more than a guess (10 %). "
        "That is no proof that nothing leaks: a stronger attack may still succeed.",
    )


def test_label_counts(make_row: Make) -> None:
    rows = [counts(make_row, wrong=3), counts(make_row, wrong=41, defense="clip(norm=1)")]
    found = verdict_of(rows)
    assert (found.level, found.badge) == ("partial", "Private labels counted")
    assert found.sentences == (
        "With no defense, label_counts told which labels the clients hold, with 3 of 50 labels wrong (a guess gets 40 "
        "wrong), from the weights that 1 client sent in fedavg, knowing nothing but the model and what crossed the "
        "wire.",
        "clip(norm=1) stops it (41 of 50 labels wrong, no fewer than a guess); "
        "what it costs in test accuracy was not measured.",
    )
    assert (
        verdict_of([counts(make_row, wrong=45)])
        .sentences[0]
        .startswith(
            "With no defense, label_counts got 45 of 50 labels wrong from the weights that 1 client sent in fedavg: "
            "a guess does as well (40 of 50)."
        )
    )


def test_every_kind_has_its_sentences_the_worst_first(make_row: Make) -> None:
    image = make_row({"client": "a"}, {"recovered": [1.0, 0.0, 0.0], "psnr": [40.0, 9.0, 9.0]})
    found = verdict_of([image, counts(make_row, wrong=3), people(make_row, 9), copy(make_row, right=63, victim=65)])
    assert [level for level, _ in found.findings] == ["severe", "partial", "partial", "partial"]
    subjects = [sentences[0] for _, sentences in found.findings]
    for words, text in zip(("copied the model", "1 of 3 faces", "9 of 20 people", "3 of 50"), subjects, strict=True):
        assert words in text
    assert found.badge == "Models copied"


def test_the_deployed_arm_is_told_for_every_kind(make_row: Make, make_utility: Make) -> None:
    rows = [
        people(make_row, hits=17),
        people(make_row, hits=9, defense="label_only"),
        copy(make_row, right=12, victim=65, defense="label_only"),
        make_utility("label_only", [0.5, 0.75], protocol="fedmd"),
    ]
    found = verdict_of(rows, deployed="label_only")
    assert found.deployed == (
        (
            "partial",
            "As deployed (fedmd, label_only): pli recovered pictures of 9 of 20 people. "
            "The clients' models reach on average 62.5 % test accuracy.",
        ),
        (
            "unrecovered",
            "As deployed (fedmd, label_only): the copy that msa made is 12 % accurate where the victim is 65 %, "
            "agreeing with it on 80 % of the test images: not clearly more than a guess (10 %). That is no proof.",
        ),
    )
    assert (found.level, found.badge) == ("partial", "As deployed: pictures of some private people recovered")


def test_nothing_of_several_kinds(make_row: Make) -> None:
    found = verdict_of([people(make_row, hits=0), copy(make_row, right=9, victim=65)], facts={})
    assert (found.level, found.badge) == ("unrecovered", "Nothing recovered by these attacks")
    assert found.sentences[0].startswith(
        "With no defense, none of the 20 people can be recognised in the pictures that pli made from the predictions"
    )
