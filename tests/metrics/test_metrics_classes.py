"""Pictures of classes: what is found for a label against the mean image of every private and public class."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedleak.errors import DataError, ShapeError
from fedleak.metrics import class_means, judge, ssim
from fedleak.metrics.judgement import Judgement
from fedleak.metrics.rivals import Rivals
from fedleak.types import Examples, PublicSet, RecoveredClasses, Truth

METRICS = ["attack_accuracy", "ssim", "nearest_public", "psnr"]


def private() -> Examples:
    """Three classes of two images each, labels 4, 7 and 9; client a holds the first two."""
    draw = torch.Generator().manual_seed(0)
    inputs = torch.rand(3, 1, 1, 12, 12, generator=draw) + 0.05 * torch.rand(3, 2, 1, 12, 12, generator=draw)
    return Examples(inputs.flatten(0, 1), torch.tensor([7, 7, 4, 4, 9, 9]))


def truth(public: PublicSet | None = None) -> Truth:
    held = private()
    used = {(2, "a"): torch.arange(4), (2, "b"): torch.tensor([4, 5])}
    return Truth(held, ("a",) * 4 + ("b",) * 2, used, Examples(held.inputs[:0], held.labels[:0]), public=public)


def judged(found: RecoveredClasses, public: PublicSet | None = None) -> Judgement:
    return judge(found, truth(public), METRICS, 30.0, None, torch.Generator().manual_seed(0))


def means() -> RecoveredClasses:
    labels, pictures = class_means(private())
    return RecoveredClasses("federation", 2, labels, pictures)


def test_class_means_by_hand() -> None:
    inputs = torch.tensor([0.0, 1.0, 0.5, 0.5]).reshape(4, 1, 1, 1)
    labels, found = class_means(Examples(inputs, torch.tensor([3, 3, 1, 1])))
    assert labels.tolist() == [1, 3]
    assert found.flatten().tolist() == [0.5, 0.5]


def test_the_means_themselves_hit_and_exchanged_they_miss() -> None:
    found = judged(means())
    assert found.scores["attack_accuracy"] == [1.0, 1.0, 1.0]
    assert found.scores["ssim"] == pytest.approx([1.0] * 3, abs=1e-5)
    assert torch.equal(found.original, found.reconstruction)
    assert "psnr" not in found.scores  # a class has a mean image, not an original
    exchanged = judged(replace(means(), labels=torch.tensor([9, 7, 4])))
    assert exchanged.scores["attack_accuracy"] == [0.0, 1.0, 0.0]


def test_a_finding_about_one_client_is_judged_on_that_clients_classes() -> None:
    found = judged(replace(means(), sender="a"))
    assert found.scores["attack_accuracy"] == [1.0, 1.0]
    assert len(found.original) == 2
    with pytest.raises(DataError, match="round=1"):
        judged(replace(means(), sender="a", round=1))


def test_a_class_that_is_not_named_or_not_finite_is_a_miss() -> None:
    broken = means().inputs.clone()
    broken[1] = torch.nan
    found = judged(replace(means(), inputs=broken[:2], labels=means().labels[:2]))
    assert found.scores["attack_accuracy"] == [1.0, 0.0, 0.0]
    assert found.scores["ssim"][1:] == [0.0, 0.0]
    assert found.found == (True, False, False)
    nothing = judged(replace(means(), inputs=broken[:0], labels=means().labels[:0]))
    assert nothing.scores["attack_accuracy"] == [0.0, 0.0, 0.0]


def test_of_a_class_named_twice_the_first_picture_counts() -> None:
    twice = replace(means(), inputs=means().inputs[[2, 0]], labels=torch.tensor([4, 4]))
    assert judged(twice).scores["attack_accuracy"] == [0.0, 0.0, 0.0]


def test_a_public_image_that_is_nearer_is_no_success_and_named_as_such() -> None:
    labels, pictures = class_means(private())
    seen = PublicSet(pictures[:1].repeat(2, 1, 1, 1), torch.tensor([4, 4]), torch.ones(2, dtype=torch.int64))
    found = judged(means(), seen)
    # The picture of label 4 is as near to the public mean of label 4: not nearer to the private one, so no success.
    assert found.scores["attack_accuracy"] == [0.0, 1.0, 1.0]
    blurred = pictures[0] + 0.2 * torch.rand(1, 12, 12, generator=torch.Generator().manual_seed(5))
    near = judged(
        replace(means(), inputs=torch.cat([blurred[None], pictures[1:]])),
        replace(seen, inputs=blurred[None].repeat(2, 1, 1, 1)),
    )
    assert near.scores["nearest_public"] == [1.0, 0.0, 0.0]
    assert labels.tolist() == [4, 7, 9]


def test_baselines_are_the_prior_a_stranger_and_the_mean_of_others() -> None:
    candidates = torch.stack([means().inputs, means().inputs.roll(1, 0)])
    found = judged(
        replace(
            means(), prior=means().inputs.flip(0), senders=("a", "b"), candidates=candidates, chosen=("a", "b", "b")
        ),
        PublicSet(torch.rand(5, 1, 12, 12, generator=torch.Generator().manual_seed(1)), torch.arange(5)),
    )
    assert found.baselines["prior"]["attack_accuracy"] == [0.0, 1.0, 0.0]
    # Labels 4 and 7 are a's, so the stranger is b, whose candidates are all wrong; 9 is b's, so it is a, who is right.
    assert found.baselines["other_client"]["attack_accuracy"] == [0.0, 0.0, 1.0]
    assert set(found.baselines) == {"prior", "other_client", "mean_image", "noise"}
    # a's candidates are right for 4 and 7, which it holds; b's of 9 is not.
    assert found.facts["twins"] == 0
    assert found.facts["labels"] == [4, 7, 9]
    assert found.facts["chosen_client"] == ["a", "b", "b"]
    assert found.facts["chosen_client_right"] == pytest.approx(2 / 3)
    assert found.facts["owner_accuracy"] == 2 / 3
    assert torch.equal(found.more["prior"], means().inputs.flip(0))


def test_the_mean_image_is_of_public_images_of_the_private_domain_else_of_the_test_set() -> None:
    others = torch.rand(5, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    tested = Examples(others[3:], torch.zeros(2, dtype=torch.int64))
    for public, expected in (
        (PublicSet(others, None, torch.tensor([0, 1, 0, 1, 1])), others[[0, 2]]),
        (PublicSet(others[:3], None, None), others[:3]),
        (PublicSet(others, None, torch.ones(5, dtype=torch.int64)), others[3:]),
        (None, others[3:]),
    ):
        held = replace(truth(public), test=tested)
        made = judge(means(), held, ["ssim"], 30.0, None, torch.Generator().manual_seed(0))
        by_hand = ssim(expected.mean(dim=0).expand(3, -1, -1, -1), means().inputs)
        assert made.baselines["mean_image"]["ssim"] == pytest.approx(by_hand.tolist(), abs=1e-5)
    assert set(judged(means()).baselines) == {"noise"}, "nobody else's images are known"


def test_of_a_label_that_was_not_named_no_client_has_a_picture() -> None:
    """The last candidate of a happens to be label 7, which was not looked for."""
    four, seven, nine = means().inputs
    named = replace(means(), labels=torch.tensor([4, 9]), inputs=torch.stack([four, nine]))
    candidates = torch.stack([torch.stack([four, seven]), torch.stack([four, nine])])
    found = judged(replace(named, senders=("a", "b"), candidates=candidates))
    assert found.facts["owner_accuracy"] == pytest.approx(2 / 3)


def test_how_like_the_others_a_clients_picture_is_of_holders_and_of_the_rest() -> None:
    """Figure 4 of pli.txt: for label 4 clients b and c show the same picture, and a, who holds it, another."""
    right = means().inputs.clamp(0, 1)
    candidates = torch.stack([right, right.flip(0), right.flip(0)])
    found = judged(
        replace(means(), prior=right, senders=("a", "b", "c"), candidates=candidates, chosen=("a", "a", "b"))
    )
    apart = ssim(right, right.flip(0), window="uniform").tolist()
    said = found.facts["similarity"]
    # a holds labels 4 and 7, b holds 9; the others' mean is over two clients.
    assert said["holds the label"] == pytest.approx([apart[0], apart[1], (apart[2] + 1) / 2], abs=1e-5)
    mixed = [(value + 1) / 2 for value in apart]
    assert said["does not"] == pytest.approx([apart[2], mixed[0], mixed[1], *mixed], abs=1e-5)


def test_every_rule_of_choice_is_judged_and_the_authors_own_evaluation_takes_theirs() -> None:
    right, wrong = means().inputs, means().inputs.flip(0)
    found = judged(
        replace(
            means(),
            prior=right,
            senders=("a", "b"),
            candidates=torch.stack([right, wrong]),
            chosen=("b", "b", "b"),
            by_rule={"sum": ("b", "b", "b"), "mean": ("a", "a", "a")},
        )
    )
    # Labels 4 and 7 are a's, 9 is b's; b's pictures are those of the labels in reverse, so that of 7 is right.
    assert found.facts["by_rule"] == {
        "sum": {"accuracy": pytest.approx(1 / 3), "chosen_client_right": pytest.approx(1 / 3)},
        "mean": {"accuracy": 1.0, "chosen_client_right": pytest.approx(2 / 3)},
    }
    assert found.facts["as_released"] == {"attack_accuracy": [1.0] * 3, "ssim": pytest.approx([1.0] * 3)}


def test_the_authors_similarity_has_a_black_border_and_a_range_of_two() -> None:
    """Against the formula written out: a Gaussian window slid over pictures with five black pixels around them."""
    rng = torch.Generator().manual_seed(8)
    picture, mean = torch.rand(2, 1, 3, 12, 12, generator=rng, dtype=torch.float64)
    place = torch.arange(11, dtype=torch.float64) - 5
    line = torch.exp(-place.square() / (2 * 1.5**2))
    window = (line[:, None] * line / line.sum() ** 2).expand(3, 1, 11, 11)

    def smooth(image: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(image, window, padding=5, groups=3)

    one, other = smooth(picture), smooth(mean)
    spread = smooth(picture**2) - one**2 + smooth(mean**2) - other**2
    together = smooth(picture * mean) - one * other
    c1, c2 = 0.02**2, 0.06**2
    expected = ((2 * one * other + c1) * (2 * together + c2)) / ((one**2 + other**2 + c1) * (spread + c2))
    rivals = Rivals(torch.tensor([4]), torch.tensor([4]), mean, 1)
    found = rivals.scores(picture, ["ssim"], "released")["ssim"]
    assert found == pytest.approx([float(expected.mean())], abs=1e-5)
    assert rivals.scores(picture, ["ssim"])["ssim"] != pytest.approx(found, abs=1e-2)


def test_every_round_is_judged_by_itself() -> None:
    found = judged(replace(means(), by_round=(means().inputs.flip(0), means().inputs)))
    assert found.facts == {"twins": 0, "labels": [4, 7, 9], "accuracy_by_round": [pytest.approx(1 / 3), 1.0]}


def test_ssim_is_that_of_the_picture_and_the_mean() -> None:
    other = torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(3))
    found = judged(replace(means(), inputs=other))
    assert found.scores["ssim"] == pytest.approx(ssim(other, means().inputs).tolist(), abs=1e-5)


def test_a_picture_without_a_label_or_of_another_shape_is_refused() -> None:
    with pytest.raises(ShapeError, match="every picture needs its label"):
        judged(replace(means(), labels=torch.tensor([4])))
    with pytest.raises(ShapeError, match="the private images are"):
        judged(replace(means(), inputs=torch.zeros(3, 1, 8, 8)))


def test_targets_that_nobody_holds_are_refused_and_one_that_is_held_is_enough() -> None:
    looked_for = replace(means(), prior=means().inputs, labels=torch.tensor([1, 2, 3]))
    with pytest.raises(DataError, match=r"target_labels=\[1, 2, 3\]: no client holds any of them; .* hold \[4, 7, 9\]"):
        judged(looked_for)
    partly = judged(replace(looked_for, labels=torch.tensor([4, 2, 3])))
    assert partly.scores["attack_accuracy"] == [1.0, 0.0, 0.0]
    # Labels that an attack inferred may all be wrong: then it found nothing.
    inferred = judged(replace(means(), labels=torch.tensor([1, 2, 3])))
    assert inferred.scores["attack_accuracy"] == [0.0, 0.0, 0.0]
