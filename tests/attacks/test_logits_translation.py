"""Translators of a learned prior: their pairs, their networks, and an autoencoder that has collapsed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedleak.attacks.logits import translation
from fedleak.attacks.logits.translation import Pairs, Translate
from fedleak.attacks.logits.translators import AutoEncoder, ResnetGenerator, patch_discriminator
from fedleak.errors import RefusedError

SHADES = torch.linspace(-1, 1, 4).view(4, 1, 1, 1).expand(4, 1, 8, 8)


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


def learned(targets: torch.Tensor) -> Translate:
    labels = torch.arange(len(targets))
    pairs = Pairs(-targets, labels, targets, labels)
    return translation.train_autoencoder(pairs, epochs=1, width=2, batch=4, rng=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("value", [1.0, -1.0, float("nan")])
def test_an_autoencoder_that_makes_everybody_white_or_black_starts_again(
    monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    steps = failing_starts(monkeypatch, value, times=1)
    translate = learned(SHADES)
    assert steps == [1e-3, 1e-3 / 3]
    assert float(translate(SHADES).std()) > 0
    failing_starts(monkeypatch, value, times=10)
    with pytest.raises(RefusedError, match="white or black picture of everybody"):
        learned(SHADES)


def test_a_single_pair_is_enough_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """One picture differs from no other, so how much pictures differ says nothing."""
    steps = failing_starts(monkeypatch, 1.0, times=1)
    learned(SHADES[1:2])
    assert len(steps) == 2


def test_who_has_hardly_learnt_makes_the_same_grey_of_everybody_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = failing_starts(monkeypatch, 0.01, times=10)
    learned(SHADES)
    assert len(steps) == 1


def test_white_targets_are_to_come_out_white(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = failing_starts(monkeypatch, 1.0, times=10)
    learned(torch.ones(4, 1, 8, 8))
    assert len(steps) == 1


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
