"""Priors: eq. 8, and translators that learn from public people only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from logit_parts import CLASSES, TARGETS, stage_logits

from fedleak.attacks.logits import priors
from fedleak.attacks.logits.observed import Scene, read_scene
from fedleak.attacks.logits.pli import PLI
from fedleak.attacks.logits.priors import Prior, PriorRecipe, mean_prior
from fedleak.attacks.logits.translation import Pairs
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


@pytest.mark.parametrize("kind", LEARNED)
def test_a_time_limit_holds_while_a_prior_is_learned(kind: str) -> None:
    """CycleGAN on photographs takes hours, and the attack has not made a step by then."""

    class OverError(Exception):
        pass

    told: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        told.append((done, total))
        raise OverError

    attack = PLI(prior=kind, prior_epochs=2, prior_width=2, width=0.01, steps=3)
    with pytest.raises(OverError):
        attack(stage_logits(rounds=2).transcript, rng=torch.Generator().manual_seed(0), progress=progress)
    assert told == [(0, 6)]


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


def test_a_cache_that_can_be_no_folder_is_refused_before_anything_is_learned(
    tmp_path: Path, trainings: list[str]
) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(RefusedError, match=r"cache='.*taken': priors cannot be kept there \(File exists\)"):
        made(scene(), cache=str(tmp_path / "taken"))
    assert trainings == []


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
