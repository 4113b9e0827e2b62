"""Stolen models: accuracy, agreement with the victim, and an upper bound that is called one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedleak.errors import DataError
from fedleak.metrics import judge
from fedleak.models import build_model
from fedleak.types import Examples, ModelSpec, Normalisation, PublicSet, RecoveredCounts, StolenModel, Truth, Weights

SPEC = ModelSpec("mlp", {"hidden": 4})
METRICS = ["attack_accuracy", "victim_accuracy", "fidelity", "psnr", "label_errors"]


def weights(seed: int) -> Weights:
    module = build_model(SPEC, (1, 3, 3), 4, torch.Generator().manual_seed(seed))
    return Weights(dict(module.named_parameters()))


def answers(of: Weights, inputs: torch.Tensor) -> torch.Tensor:
    module = build_model(SPEC, (1, 3, 3), 4)
    module.load_state_dict(dict(of.tensors))
    with torch.no_grad():
        return module((inputs - 0.5) / 0.1).argmax(dim=-1)


def test_accuracy_agreement_and_the_best_round() -> None:
    inputs = torch.rand(40, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    first, last = weights(1), weights(2)
    labels = answers(first, inputs)  # the imitation after round 2 is right everywhere
    victim = answers(last, inputs)  # the victim is what the imitation is after round 3
    test = Examples(inputs, labels)
    truth = Truth(test, ("a",) * 40, {}, test, predicted={(2, "a"): victim.to(torch.int16)})
    found = StolenModel("a", 2, SPEC, last, Normalisation((0.5,), (0.1,)), history=((2, first), (3, last)))
    verdict = judge(found, truth, METRICS, 30.0, None, torch.Generator().manual_seed(0))
    assert set(verdict.scores) == {"attack_accuracy", "victim_accuracy", "fidelity"}
    assert verdict.scores["fidelity"] == [1.0] * 40
    assert verdict.scores["attack_accuracy"] == (victim == labels).float().tolist()
    assert verdict.scores["victim_accuracy"] == verdict.scores["attack_accuracy"]
    assert verdict.facts == {"upper_bound_accuracy": 1.0, "upper_bound_round": 2}
    commonest = int(torch.mode(labels).values)
    assert verdict.baselines["commonest"]["attack_accuracy"] == (labels == commonest).float().tolist()


class Scaled(nn.Module):
    """Ends in a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.sharpness = nn.Parameter(torch.tensor(2.0))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.sharpness * inputs


def test_a_copy_in_a_network_of_ones_own_may_end_in_a_single_number() -> None:
    def made() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(9, 4), Scaled())

    module, inputs = made(), torch.rand(20, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        labels = module(inputs).argmax(dim=-1)
    test = Examples(inputs, labels)
    truth = Truth(test, ("a",) * 20, {}, test, predicted={(1, "a"): labels.to(torch.int16)})
    own = Weights(dict(module.named_parameters()))
    found = StolenModel("a", 1, ModelSpec("my_app:made", factory=made), own)
    verdict = judge(found, truth, METRICS, 30.0, None, torch.Generator())
    assert verdict.scores["attack_accuracy"] == verdict.scores["fidelity"] == [1.0] * 20


def test_a_victim_that_the_truth_does_not_know_is_refused() -> None:
    test = Examples(torch.rand(3, 1, 3, 3), torch.zeros(3, dtype=torch.int64))
    truth = Truth(test, ("a",) * 3, {}, test)
    with pytest.raises(DataError, match="does not hold what that client's model predicts"):
        judge(StolenModel("a", 1, SPEC, weights(1)), truth, METRICS, 30.0, None, torch.Generator())
    damaged = Truth(test, ("a",) * 3, {}, test, predicted={(1, "a"): torch.zeros(1, dtype=torch.int16)})
    with pytest.raises(DataError, match="1 predictions for 3 test examples; the truth is damaged"):
        judge(StolenModel("a", 1, SPEC, weights(1)), damaged, METRICS, 30.0, None, torch.Generator())


def test_label_counts_are_judged_by_the_labels_they_miss() -> None:
    inputs = torch.rand(4, 1, 3, 3)
    held = Examples(inputs, torch.tensor([0, 0, 1, 3]))
    truth = Truth(held, ("a",) * 4, {(1, "a"): torch.arange(4)}, Examples(inputs[:2], torch.tensor([3, 3])))
    found = RecoveredCounts("a", 1, torch.tensor([1, 1, 2, 0]))
    verdict = judge(found, truth, METRICS, 30.0, None, torch.Generator().manual_seed(0))
    assert verdict.scores == {"label_errors": [0.0, 1.0, 0.0, 1.0]}
    assert verdict.baselines["commonest"]["label_errors"] == [1.0, 1.0, 1.0, 0.0]
    with pytest.raises(DataError, match="round=3"):
        judge(RecoveredCounts("a", 3, torch.ones(4)), truth, METRICS, 30.0, None, torch.Generator())


def test_a_guess_of_label_counts_draws_evenly_from_all_classes() -> None:
    """400 images of class 0 among four classes: a guess names about 100 of them (5 deviations are 43)."""
    held = Examples(torch.zeros(400, 1, 3, 3), torch.zeros(400, dtype=torch.int64))
    truth = Truth(held, ("a",) * 400, {(1, "a"): torch.arange(400)}, Examples(held.inputs[:0], held.labels[:0]))
    found = RecoveredCounts("a", 1, torch.tensor([390, -3, 10, 0]))
    verdict = judge(found, truth, ["label_errors"], 30.0, None, torch.Generator().manual_seed(0))
    assert sum(verdict.scores["label_errors"]) == 10, "a negative count is none"
    assert sum(verdict.baselines["evenly"]["label_errors"]) == pytest.approx(300, abs=43)


def test_theorem_2_is_kept_beside_the_scores() -> None:
    """All public images are of another domain (all black, all white): alpha 0, the distance 2, lambda unknown."""
    dark, copy = torch.zeros(40, 1, 3, 3), weights(1)
    test = Examples(dark, torch.zeros(40, dtype=torch.int64))
    truth = Truth(
        test,
        ("a",) * 40,
        {},
        test,
        public=PublicSet(torch.ones(40, 1, 3, 3), None, None),
        predicted={(1, "a"): torch.zeros(40, dtype=torch.int16)},
    )
    found = StolenModel("a", 1, SPEC, copy, Normalisation((0.5,), (0.1,)))
    facts = judge(found, truth, METRICS, 30.0, None, torch.Generator().manual_seed(0)).facts
    assert facts == {"theorem_2": {"alpha": 0.0, "distance": 2.0, "lambda": None}}
