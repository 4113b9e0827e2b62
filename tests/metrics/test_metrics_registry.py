"""The list of metrics: names of the contract, and the thresholds above which an image counts as recovered."""

from __future__ import annotations

import math

import pytest

import fedleak.metrics
from fedleak.metrics import DEFAULT_METRICS, METRICS, default_threshold


def test_names_and_entries() -> None:
    contract = (
        "mse psnr ssim lpips recovered label_errors attack_accuracy nearest_public fidelity victim_accuracy utility"
    )
    assert set(METRICS) == set(contract.split())
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.description
        assert metric.unit
        assert math.isfinite(metric.nothing)


def test_what_is_asked_for_by_default_is_all_that_needs_no_further_weights() -> None:
    assert len(set(DEFAULT_METRICS)) == len(DEFAULT_METRICS)
    of_attacks = {name for name, metric in METRICS.items() if metric.judges != ("federation",)}
    assert set(DEFAULT_METRICS) == of_attacks - {"lpips"}


@pytest.mark.parametrize(
    ("dataset", "examples", "threshold"),
    [
        ("orl", 1, 30.0),
        ("femnist", 1, 30.0),
        ("cifar100", 1, 30.0),
        ("femnist", 50, 20.0),
        ("digits", 2, 20.0),
        ("mnist", 8, 20.0),
        ("cifar100", 50, 19.0),
        ("orl", 4, 30.0),
        ("my own data", 4, 30.0),
    ],
)
def test_thresholds_of_the_papers(dataset: str, examples: int, threshold: float) -> None:
    assert default_threshold(dataset, examples) == threshold


def test_all_is_what_is_importable() -> None:
    for name in fedleak.metrics.__all__:
        assert getattr(fedleak.metrics, name) is not None
