"""Priors: eq. 8, and translators that learn from public people only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from logit_parts import CLASSES, TARGETS, stage_logits

from fedleak.attacks.logits import priors, translation
from fedleak.attacks.logits.observed import Scene, read_scene
from fedleak.attacks.logits.pli import PLI
from fedleak.attacks.logits.priors import Prior, PriorRecipe, mean_prior
from fedleak.attacks.logits.translation import Pairs
from fedleak.attacks.logits.translators import AutoEncoder, ResnetGenerator, patch_discriminator
from fedleak.data.domains import blurred
from fedleak.errors import RefusedError
from fedleak.files import keeping_in

LEARNED = ["autoencoder", "cyclegan", "deblur"]


def scene(**fields: Any) -> Scene:
    return read_scene(stage_logits(clean=18, **fields).transcript.setup)


def made(of: Scene, kind: str = "autoencoder", seed: int = 1, **fields: Any) -> tuple[Prior, dict[str, Any]]:
    notes: dict[str, Any] = {}
    recipe = PriorRecipe(kind, **{"epochs": 1, "width": 2, "batch": 8, **fields})
    return recipe.make(of, seed, notes), notes


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priors, "_memory", type(priors._memory)())


def test_the_mean_of_d0_is_the_same_for_every_label() -> None:
    of = scene()
    prior, notes = made(of, "mean")
    expected = of.pictures[of.clean].mean(0)
    assert torch.allclose(prior.of(of.targets), expected.expand(3, -1, -1, -1))
    assert notes["prior"] == "mean of D_0"


@pytest.mark.parametrize("kind", LEARNED)
def test_a_learned_prior_has_a_picture_for_every_label_of_the_other_domain(kind: str) -> None:
    of = scene()
    prior, notes = made(of, kind)
    assert notes["prior"] == kind
    assert prior.labels.tolist() == list(range(CLASSES))
    assert prior.pictures.shape == (CLASSES + 1, 8, 8, 1)
    assert float(prior.pictures.abs().max()) <= 1
    assert torch.equal(prior.of(torch.tensor([2])), prior.pictures[2:3])
    assert torch.equal(made(of, kind)[0].pictures, prior.pictures)


def test_a_learned_prior_never_learns_from_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where clean pictures of targets are public, they are not trained on."""
    of = scene()
    assert of.labels is not None
    mixed = replace(of, labels=torch.where(torch.arange(len(of.labels)) % 4 == 0, 1, of.labels))
    seen: list[Pairs] = []

    def watch(pairs: Pairs, **settings: Any) -> Any:
        seen.append(pairs)
        return lambda pictures: pictures

    monkeypatch.setattr(priors, "TRAINERS", {"autoencoder": watch})
    prior, _ = made(mixed)
    (pairs,) = seen
    taught = set(pairs.clean_labels.tolist()) | set(pairs.other_labels.tolist())
    assert taught
    assert not taught & set(TARGETS)
    assert set(TARGETS) <= set(prior.labels.tolist())
    # Eq. 9: the mean over a label's translated pictures; here nothing is translated.
    own = mixed.pictures[mixed.other][mixed.labels[mixed.other] == 0]
    assert torch.allclose(prior.of(torch.tensor([0]))[0], own.mean(0), atol=1e-6)


def test_an_autoencoder_learns_to_undo_the_other_domain() -> None:
    """Clean pictures are the other domain's, brightened: what holds for public people is done to targets too."""
    of = scene()
    assert of.labels is not None
    pictures = of.pictures.clone()
    twin = of.other[of.labels[of.other] >= len(TARGETS)]
    pictures[of.clean[: len(twin)]] = 0.5 * pictures[twin] + 0.5
    labels = of.labels.clone()
    labels[of.clean[: len(twin)]] = of.labels[twin]
    paired = replace(of, pictures=pictures, labels=labels, clean=of.clean[: len(twin)])
    expected = 0.5 * mean_of_other(paired) + 0.5
    far = [
        float((made(paired, epochs=epochs, width=8)[0].of(of.targets) - expected).square().mean())
        for epochs in (0, 150)
    ]
    assert far[1] < 0.05 * far[0]


def mean_of_other(of: Scene) -> torch.Tensor:
    assert of.labels is not None
    shown, labels = of.pictures[of.other], of.labels[of.other]
    return torch.stack([shown[labels == target].mean(0) for target in of.targets])


def test_nothing_to_translate_is_refused() -> None:
    with pytest.raises(RefusedError, match="no pictures of another domain"):
        made(scene(domains=False))
    of = scene()
    assert of.labels is not None
    strangers = replace(of, labels=torch.where(torch.isin(torch.arange(len(of.labels)), of.clean), 99, of.labels))
    with pytest.raises(RefusedError, match="seen in both domains"):
        made(strangers)
    attack = PLI(width=0.01, steps=1)
    with pytest.raises(RefusedError, match="prior='mean'"):
        attack(stage_logits(domains=False).transcript, rng=torch.Generator().manual_seed(0))


def test_without_public_labels_only_the_mean_is_left_and_the_notes_say_so() -> None:
    of = scene(labelled=False)
    prior, notes = made(of)
    assert torch.equal(prior.pictures, mean_prior(of).pictures)
    assert notes["prior"] == "mean of D_0, not autoencoder: no public labels"


def test_a_label_without_a_public_picture_gets_the_mean() -> None:
    of = scene()
    assert of.labels is not None
    kept = of.other[of.labels[of.other] != 0]
    prior, notes = made(replace(of, other=kept))
    assert torch.equal(prior.of(torch.tensor([0])), mean_prior(of).pictures)
    assert notes["prior_missing"].startswith("1 target label")


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for every translator that is trained."""
    done: list[str] = []

    def train(pairs: Pairs, **settings: Any) -> Any:
        done.append("autoencoder")
        return priors.train_autoencoder(pairs, **settings)

    monkeypatch.setattr(priors, "TRAINERS", {"autoencoder": train})
    return done


def test_a_prior_is_made_once_and_kept_by_content(tmp_path: Path, trainings: list[str]) -> None:
    of, folder = scene(), str(tmp_path / "kept")
    first, told = made(of, cache=folder)
    assert len(trainings) == 1
    for forget in (False, True):
        if forget:
            priors._memory.clear()
        again, notes = made(of, cache=folder)
        assert torch.equal(again.pictures, first.pictures)
        assert notes == told  # a row does not depend on which worker was first
    assert len(trainings) == 1
    made(of, cache=folder, seed=2)
    made(of, cache=folder, width=3)
    made(replace(of, pictures=of.pictures + 0.001), cache=folder)
    assert len(trainings) == 4
    made(replace(of, targets=of.targets.flip(0)), cache=folder)
    assert len(trainings) == 4
    priors._memory.clear()
    for file in Path(folder).glob("prior-*"):
        file.write_bytes(b"damaged")
    made(of, cache=folder)
    assert len(trainings) == 5


def failing_starts(monkeypatch: pytest.MonkeyPatch, value: float, times: int) -> list[float]:
    """The step of every start; of the first `times` all pixels come out with this value."""
    steps: list[float] = []

    class Watched(translation.Stack):
        def __init__(self, modules: Any, *, lr: float, **settings: Any) -> None:
            steps.append(lr)
            super().__init__(modules, lr=lr, **settings)

        def predict(self, inputs: Any, batch_size: int = 1024) -> torch.Tensor:
            found = super().predict(inputs, batch_size)
            return torch.full_like(found, value) if len(steps) <= times else found

    monkeypatch.setattr(translation, "Stack", Watched)
    return steps


@pytest.mark.parametrize("value", [1.0, -1.0, float("nan")])
def test_an_autoencoder_that_makes_everybody_white_or_black_starts_again(
    monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    steps = failing_starts(monkeypatch, value, times=1)
    prior, _ = made(scene())
    assert steps == [1e-3, 1e-3 / 3]
    assert float(prior.pictures[:-1].std()) > 0
    failing_starts(monkeypatch, value, times=10)
    with pytest.raises(RefusedError, match="white or black picture of everybody"):
        made(scene(), seed=3)


def test_a_single_pair_is_enough_to_tell_a_collapse(monkeypatch: pytest.MonkeyPatch) -> None:
    """One picture differs from no other, so how much pictures differ says nothing."""
    one, label = torch.zeros(1, 1, 8, 8), torch.zeros(1, dtype=torch.long)
    steps = failing_starts(monkeypatch, 1.0, times=1)
    translation.train_autoencoder(
        Pairs(one, label, one, label), epochs=0, width=2, batch=1, rng=torch.Generator().manual_seed(0)
    )
    assert len(steps) == 2


def starts_needed(monkeypatch: pytest.MonkeyPatch, value: float, targets: torch.Tensor) -> int:
    """How many, where whatever is learnt has this value in all pixels."""
    steps = failing_starts(monkeypatch, value, times=10)
    labels = torch.arange(len(targets))
    translation.train_autoencoder(
        Pairs(-targets, labels, targets, labels), epochs=1, width=2, batch=4, rng=torch.Generator().manual_seed(0)
    )
    return len(steps)


def test_who_has_hardly_learnt_makes_the_same_grey_of_everybody_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert starts_needed(monkeypatch, 0.01, torch.linspace(-1, 1, 4).view(4, 1, 1, 1).expand(4, 1, 8, 8)) == 1


def test_white_targets_are_to_come_out_white(monkeypatch: pytest.MonkeyPatch) -> None:
    assert starts_needed(monkeypatch, 1.0, torch.ones(4, 1, 8, 8)) == 1


def test_other_targets_do_not_find_a_translator_that_learnt_from_them(tmp_path: Path, trainings: list[str]) -> None:
    of, folder = scene(), str(tmp_path / "kept")
    made(of, cache=folder)
    made(replace(of, targets=torch.tensor([CLASSES - 1])), cache=folder)
    assert len(trainings) == 2


@pytest.mark.parametrize("side", [1, 3, 4])
def test_where_only_targets_are_blurred_copies_of_d0_make_the_pairs(monkeypatch: pytest.MonkeyPatch, side: int) -> None:
    """FaceScrub as the paper has it (facts, section 1): no blurred picture of anybody else is public."""
    of = scene()
    assert of.labels is not None
    only_targets = replace(of, other=of.other[torch.isin(of.labels[of.other], of.targets)])
    with pytest.raises(RefusedError, match="prior_blur"):
        made(only_targets)
    seen: list[Pairs] = []

    def watch(pairs: Pairs, **settings: Any) -> Any:
        seen.append(pairs)
        return lambda pictures: pictures

    monkeypatch.setattr(priors, "TRAINERS", {"autoencoder": watch})
    prior, notes = made(only_targets, blur=side)
    assert notes["prior_pairs"] == f"D_0 and copies of it blurred by a box of {side}"
    assert prior.labels.tolist() == sorted(of.targets.tolist())
    (pairs,) = seen
    assert torch.equal(pairs.clean_labels, pairs.other_labels)
    assert not set(pairs.clean_labels.tolist()) & set(of.targets.tolist())
    # The same box as that of the data: exact there, and rounded to 1/255 steps.
    levels = ((pairs.clean + 1) / 2 * 255).round().to(torch.uint8)
    expected = blurred(levels, side).to(torch.float32) / 255 * 2 - 1
    assert torch.allclose(pairs.other, expected, atol=2 / 255)


def test_a_box_that_does_not_fit_is_refused() -> None:
    of = scene()
    assert of.labels is not None
    only_targets = replace(of, other=of.other[torch.isin(of.labels[of.other], of.targets)])
    with pytest.raises(RefusedError, match="prior_blur=9: the pictures are 8x8"):
        made(only_targets, blur=9)


def test_a_run_offers_a_folder_that_its_workers_share(tmp_path: Path, trainings: list[str]) -> None:
    of = scene()
    with keeping_in(tmp_path / "kept"):
        made(of)
        priors._memory.clear()  # as another worker
        made(of)
    assert len(trainings) == 1
    priors._memory.clear()
    made(of)
    assert len(trainings) == 2
    with keeping_in(tmp_path / "kept"):
        made(of, seed=3, cache=str(tmp_path / "own"))
    assert len(list((tmp_path / "own").glob("prior-*"))) == 1
    assert len(list((tmp_path / "kept").glob("prior-*"))) == 1


def test_memory_holds_a_few(trainings: list[str]) -> None:
    of = scene()
    for seed in range(priors.REMEMBERED + 1):
        made(of, seed=seed, epochs=0)
    assert len(priors._memory) == priors.REMEMBERED
    made(of, seed=priors.REMEMBERED, epochs=0)
    assert len(trainings) == priors.REMEMBERED + 1
    made(of, seed=0, epochs=0)
    assert len(trainings) == priors.REMEMBERED + 2


def test_pairs_are_of_one_person() -> None:
    rng = torch.Generator().manual_seed(0)
    clean, clean_labels = torch.rand(6, 1, 4, 4, generator=rng), torch.tensor([0, 0, 0, 1, 1, 1])
    other = clean[[2, 4]] + 0.01
    pairs = Pairs(other, torch.tensor([0, 1]), clean, clean_labels)
    assert [index.tolist() for index in pairs.nearest()] == [[0, 1], [2, 4]]
    left, right = pairs.any(rng)
    assert sorted(zip(left.tolist(), right.tolist(), strict=True)) == [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 5)]


@pytest.mark.parametrize("size", [(8, 8), (9, 12), (32, 32), (64, 64)])
def test_translators_keep_the_size_of_a_picture(size: tuple[int, int]) -> None:
    pictures = torch.rand(2, 3, *size) * 2 - 1
    for module in (AutoEncoder(3, size, 2), ResnetGenerator(3, 2)):
        out = module(pictures)
        assert out.shape == pictures.shape
        assert float(out.detach().abs().max()) <= 1
    assert patch_discriminator(3, size, 2)(pictures).shape[:2] == (2, 1)
