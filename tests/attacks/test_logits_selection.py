"""Eq. 11: the picture least like those of the other clients, and the smoothest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity

from fedleak.attacks.logits.selection import pick, scores, total_variation


def test_scores_are_sums_of_somebody_elses_ssim() -> None:
    pictures = torch.rand(3, 2, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = scores(pictures, beta=0.1)
    for label in range(2):
        for k in range(3):
            expected = 0.1 * float(total_variation(pictures[k, label]))
            for other in range(3):
                if other != k:
                    per_channel = [
                        # Means over the windows inside the picture; skimage also crops what it cannot fill.
                        structural_similarity(
                            np.asarray(pictures[k, label, c]),
                            np.asarray(pictures[other, label, c]),
                            win_size=7,
                            data_range=1.0,
                            use_sample_covariance=False,
                        )
                        for c in range(3)
                    ]
                    expected += sum(per_channel) / 3
            assert float(found[k, label]) == pytest.approx(expected, abs=1e-9)


def test_the_authors_rule_takes_means_and_pictures_of_twice_the_range() -> None:
    pictures = torch.rand(4, 2, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    alike = scores(pictures, beta=0.0)
    rough = total_variation(2 * pictures - 1)
    assert torch.allclose(scores(pictures, 0.1, "mean"), alike / 3 + 0.1 * rough)


def test_with_many_clients_only_the_authors_rule_passes_noise_over_at_their_beta() -> None:
    """Eight clients yield one smooth picture, the owner another, one client noise: as in DS-FL."""
    smooth = torch.linspace(0, 1, 16).expand(1, 16, 16)
    noise = torch.rand(1, 16, 16, generator=torch.Generator().manual_seed(1))
    candidates = torch.stack([*[smooth] * 8, smooth.transpose(1, 2), noise])[:, None]
    assert pick(candidates, 0.1, "sum").tolist() == [9]
    assert pick(candidates, 0.1, "mean").tolist() == [8]


def test_total_variation_by_hand() -> None:
    picture = torch.tensor([[[0.0, 1.0], [0.5, 1.0]]])
    assert float(total_variation(picture)) == pytest.approx((0.5 + 0.0) / 2 + (1.0 + 0.5) / 2)


def test_the_odd_one_out_is_picked_unless_it_is_noise() -> None:
    """Figure 4: noise is even less like the others, and total variation is there against it."""
    smooth = torch.linspace(0, 1, 16).expand(1, 16, 16)
    steep = smooth.square()
    noise = torch.rand(1, 16, 16, generator=torch.Generator().manual_seed(1))
    assert pick(torch.stack([smooth, smooth, smooth.flip(-1)])[:, None], 0.1).tolist() == [2]
    candidates = torch.stack([smooth, smooth, steep, noise])[:, None]
    assert pick(candidates, 0.0).tolist() == [3]
    assert pick(candidates, 10.0).tolist() == [2]


def test_one_client_wins_and_two_are_told_apart_by_smoothness() -> None:
    rng = torch.Generator().manual_seed(2)
    rough, smooth = torch.rand(1, 12, 12, generator=rng), torch.full((1, 12, 12), 0.5)
    assert pick(rough[None, None], 0.1).tolist() == [0]
    assert pick(torch.stack([rough, smooth])[:, None], 0.1).tolist() == [1]


def test_a_picture_that_is_not_finite_is_never_picked_before_one_that_is() -> None:
    broken = torch.full((1, 8, 8), float("nan"))
    fine = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(3))
    assert pick(torch.stack([broken, fine])[:, None], 0.1).tolist() == [1]
    assert bool(torch.isinf(scores(broken[None, None], 0.1)).all())
