"""The judging step: order, null baselines, missing metrics, and originals for which nothing was found."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from fedleak.errors import DataError, RefusedError, ShapeError
from fedleak.metrics import METRICS, NULLS, NotAvailable, judge, label_errors, null_guesses, psnr, ssim, utility
from fedleak.metrics.judge_images import _ARITHMETIC
from fedleak.types import Examples, RecoveredImages, Truth

IMAGE_METRICS = ["mse", "psnr", "ssim", "recovered", "label_errors"]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def truth() -> Truth:
    """Six private images of two clients; client-1 used four of them in round 2, in an order of its own."""
    private = Examples(torch.rand(6, 1, 12, 12, generator=rng(1)), torch.tensor([0, 1, 2, 2, 4, 5]))
    test = Examples(torch.rand(20, 1, 12, 12, generator=rng(2)), torch.arange(20) % 5)
    used = {(2, "client-1"): torch.tensor([3, 0, 2, 5]), (1, "client-0"): torch.tensor([1])}
    return Truth(private, ("client-1",) * 6, used, test, correct=torch.tensor([1.0, 0.0, 1.0]))


def recovered(inputs: torch.Tensor, labels: torch.Tensor | None = None, **changes: object) -> RecoveredImages:
    fields = {"sender": "client-1", "round": 2, "inputs": inputs, "labels": labels, "objective": 0.0, **changes}
    return RecoveredImages(**fields)  # type: ignore[arg-type]


def shuffled(truth: Truth, noise: float = 0.01) -> tuple[Examples, RecoveredImages]:
    behind = truth.behind(2, "client-1")
    order = torch.tensor([2, 0, 3, 1])
    blurred = behind.inputs + noise * torch.randn(behind.inputs.shape, generator=rng(3))
    return behind, recovered(blurred[order], behind.labels[order])


def test_one_number_per_original_in_the_order_of_the_truth(truth: Truth) -> None:
    behind, found = shuffled(truth)
    made = judge(found, truth, IMAGE_METRICS, 30.0, None, rng())
    assert made.partner == (1, 3, 0, 2)
    arranged = found.inputs[list(made.partner)]
    assert made.scores["psnr"] == psnr(arranged, behind.inputs).tolist()
    assert made.scores["ssim"] == ssim(arranged, behind.inputs).tolist()
    assert made.scores["recovered"] == [1.0] * 4
    assert made.scores["label_errors"] == [0.0] * 4
    assert torch.equal(made.original, behind.inputs)
    assert torch.equal(made.reconstruction, arranged)
    assert made.found == (True,) * 4
    assert made.unavailable == {}


def test_recovered_is_strictly_above_the_threshold(truth: Truth) -> None:
    _, found = shuffled(truth)
    scores = judge(found, truth, ["psnr"], 0.0, None, rng()).scores["psnr"]
    at = sorted(scores)[1]
    flags = judge(found, truth, ["recovered"], at, None, rng()).scores["recovered"]
    assert flags == [float(score > at) for score in scores]
    assert sum(flags) == 2.0


def test_null_baselines_are_scored_by_the_same_metrics(truth: Truth) -> None:
    behind, found = shuffled(truth)
    made = judge(found, truth, IMAGE_METRICS, 30.0, None, rng())
    assert set(made.baselines) == set(NULLS)
    for scores in made.baselines.values():
        assert {name: len(values) for name, values in scores.items()} == dict.fromkeys(IMAGE_METRICS, 4)
        assert max(scores["psnr"]) < min(made.scores["psnr"])
        assert scores["recovered"] == [0.0] * 4
    mean = truth.test.inputs.mean(dim=0).expand_as(behind.inputs)
    assert made.baselines["mean_image"]["psnr"] == pytest.approx(psnr(mean, behind.inputs).tolist(), rel=1e-5)


def test_everything_in_a_judgement_is_finite_json(truth: Truth) -> None:
    behind = truth.behind(2, "client-1")
    inputs = behind.inputs.clone()
    inputs[0] = torch.nan
    inputs[1, 0, 0, 0] = torch.inf
    made = judge(recovered(inputs[:3], behind.labels[:3]), truth, IMAGE_METRICS, -5.0, None, rng())
    json.dumps([made.scores, made.baselines], allow_nan=False)
    assert made.found == (False, False, True, False)
    assert made.reconstruction.min() >= 0.0
    assert made.reconstruction.max() <= 1.0
    for name in ("mse", "psnr", "ssim", "recovered"):
        assert [made.scores[name][i] for i in (0, 1, 3)] == [METRICS[name].nothing] * 3
    assert made.scores["psnr"][2] == pytest.approx(120.0)
    assert made.scores["recovered"][2] == 1.0


def test_an_attack_that_found_nothing_is_scored_as_nothing(truth: Truth) -> None:
    nothing = recovered(torch.zeros(0), torch.zeros(0, dtype=torch.long), status="failed")
    made = judge(nothing, truth, IMAGE_METRICS, 30.0, None, rng())
    assert made.scores == {name: [METRICS[name].nothing] * 4 for name in IMAGE_METRICS}
    assert made.found == (False,) * 4
    assert (made.reconstruction == 0.5).all()


def test_label_errors_add_up(truth: Truth) -> None:
    behind, found = shuffled(truth)
    wrong = recovered(found.inputs, torch.tensor([2, 2, 9, 9]))
    made = judge(wrong, truth, ["label_errors"], 30.0, None, rng())
    assert sum(made.scores["label_errors"]) == label_errors(torch.tensor([2, 2, 9, 9]), behind.labels) == 2


def test_metrics_that_cannot_be_computed_say_why(truth: Truth, tmp_path: Path) -> None:
    behind = truth.behind(2, "client-1")
    made = judge(recovered(behind.inputs), truth, ["psnr", "lpips", "label_errors"], 30.0, tmp_path, rng())
    assert set(made.scores) == {"psnr"}
    assert set(made.unavailable) == {"lpips", "label_errors"}
    assert "names no labels" in made.unavailable["label_errors"]
    assert all(set(scores) == {"psnr"} for scores in made.baselines.values())


def test_the_same_generator_gives_the_same_judgement(truth: Truth) -> None:
    _, found = shuffled(truth)
    first, again, other = (judge(found, truth, IMAGE_METRICS, 30.0, None, rng(s)) for s in (4, 4, 5))
    assert first.baselines == again.baselines
    assert first.baselines["noise"] != other.baselines["noise"]
    assert first.scores == other.scores


def test_utility_belongs_to_the_federation(truth: Truth) -> None:
    _, found = shuffled(truth)
    assert judge(found, truth, ["utility"], 30.0, None, rng()).scores == {}
    assert utility(truth) == [1.0, 0.0, 1.0]
    untested = Truth(truth.private, truth.owners, truth.used, truth.test)
    assert isinstance(utility(untested), NotAvailable)


def test_errors(truth: Truth) -> None:
    behind, found = shuffled(truth)
    with pytest.raises(RefusedError, match=r"'pnsr', 'beauty'.*psnr"):
        judge(found, truth, ["pnsr", "psnr", "beauty"], 30.0, None, rng())
    with pytest.raises(DataError, match=r"client-1.*round=9"):
        judge(recovered(found.inputs, round=9), truth, ["psnr"], 30.0, None, rng())
    with pytest.raises(ShapeError, match="3 labels for 4 images"):
        judge(recovered(found.inputs, behind.labels[:3]), truth, ["psnr"], 30.0, None, rng())
    with pytest.raises(ShapeError):
        judge(recovered(torch.zeros(4, 3, 12, 12)), truth, ["psnr"], 30.0, None, rng())


def test_every_metric_of_a_finding_has_its_arithmetic() -> None:
    assert set(_ARITHMETIC) == {name for name, metric in METRICS.items() if "images" in metric.judges}


# --- null baselines --------------------------------------------------------------------------------------------------


def test_guesses_are_made_from_other_people_only(truth: Truth) -> None:
    originals = truth.behind(2, "client-1").inputs
    guesses = null_guesses(originals, truth.test, rng(6))
    blind = null_guesses(torch.full_like(originals, 7.0), truth.test, rng(6))
    for name, guess in guesses.items():
        assert guess.inputs.shape == originals.shape
        assert torch.equal(guess.inputs, blind[name].inputs)
        assert torch.equal(guess.labels, blind[name].labels)


def test_what_each_guess_is(truth: Truth) -> None:
    others = Examples(truth.test.inputs[:3], torch.tensor([4, 7, 7]))
    guesses = null_guesses(torch.zeros(200, 1, 12, 12), others, rng(7))
    torch.testing.assert_close(guesses["mean_image"].inputs[5], others.inputs.mean(dim=0))
    assert set(guesses["mean_image"].labels.tolist()) == {7}
    drawn = guesses["other_image"]
    which = (drawn.inputs[:, None] == others.inputs[None]).flatten(2).all(dim=2)
    assert (which.sum(dim=1) == 1).all()
    assert which.any(dim=0).all()
    assert torch.equal(drawn.labels, others.labels[which.int().argmax(dim=1)])
    noise = guesses["noise"].inputs
    assert noise.min() >= 0.0
    assert noise.max() <= 1.0
    assert noise.mean().item() == pytest.approx(0.5, abs=4 * math.sqrt(1 / 12 / noise.numel()))
    assert guesses["noise"].labels.float().mean().item() == pytest.approx(5.5, abs=0.5)


def test_without_other_people_only_noise_is_left() -> None:
    nobody = Examples(torch.zeros(0, 1, 2, 2), torch.zeros(0, dtype=torch.long))
    assert set(null_guesses(torch.zeros(2, 1, 2, 2), nobody, rng())) == {"noise"}


def test_other_people_of_another_shape_are_an_error(truth: Truth) -> None:
    with pytest.raises(ShapeError, match="same shape"):
        null_guesses(torch.zeros(2, 3, 12, 12), truth.test, rng())
