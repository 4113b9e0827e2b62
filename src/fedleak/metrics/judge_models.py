"""A stolen model against the model it imitates, on examples that neither was trained on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedleak.errors import DataError
from fedleak.learning.functional import Network, predict
from fedleak.metrics.divergence import known_bound
from fedleak.metrics.judgement import Judgement, asked_of
from fedleak.models import build_model
from fedleak.types import Examples, StolenModel, Truth, Weights

__all__ = ["judge_model"]


def judge_model(found: StolenModel, truth: Truth, metrics: Sequence[str]) -> Judgement:
    """One number per test example of the victim: `attack_accuracy` 1 where the stolen model is right, `victim_accuracy`
    1 where the victim is, `fidelity` 1 where both name the same class.

    Baseline: somebody who names the commonest class of the test set for every example. `facts["upper_bound_round"]` is
    the round after which the imitation was most accurate on the test set, `facts["upper_bound_accuracy"]` how accurate:
    an attacker cannot choose by examples that he does not have. `facts["theorem_2"]` is how far the risk on the public
    mixture can be from that on private data: its share of private images, the distance of the others, and lambda.
    """
    asked = asked_of("model", metrics)
    if (found.round, found.sender) not in truth.predicted:
        raise DataError(
            f"sender={found.sender!r}, round={found.round}: the truth does not hold what that client's model predicts; "
            "judge a finding with the truth of the same federation, with held-out examples, and where not every round "
            "is tested (evaluate_every above 1), attack one that is"
        )
    victim = truth.predicted[(found.round, found.sender)].long()
    labels = truth.test.labels
    if len(victim) != len(labels):
        raise DataError(
            f"sender={found.sender!r}: {len(victim)} predictions for {len(labels)} test examples; the truth is damaged"
        )
    stolen = _predicted(found, found.weights, truth.test)
    commonest = torch.full_like(labels, int(torch.mode(labels).values)) if len(labels) else labels

    def scores(guess: Tensor) -> dict[str, list[float]]:
        known = {"attack_accuracy": guess == labels, "fidelity": guess == victim, "victim_accuracy": victim == labels}
        return {name: [float(value) for value in known[name].tolist()] for name in asked}

    facts: dict[str, object] = {}
    if found.history:
        reached = [
            (float((_predicted(found, weights, truth.test) == labels).double().mean()), at)
            for at, weights in found.history
        ]
        best = max(reached, key=lambda pair: pair[0])
        facts = {"upper_bound_accuracy": best[0], "upper_bound_round": best[1]}
    bound = known_bound(truth)
    if bound is not None:
        facts["theorem_2"] = {"alpha": bound.alpha, "distance": bound.distance, "lambda": bound.joint}
    return Judgement(scores=scores(stolen), baselines={"commonest": scores(commonest)}, facts=facts)


def _predicted(found: StolenModel, weights: Weights, test: Examples) -> Tensor:
    """On the device that the weights are on: after every round thousands of pictures, more work than the theft."""
    head = list(weights.tensors.values())[-1]
    # A network of fedleak ends in as many numbers as it has classes; one's own may end in a single number (a scale),
    # and is not asked.
    classes = int(head.shape[0]) if head.ndim else 1
    module = build_model(found.model, tuple(test.inputs.shape[1:]), classes).to(head.device).eval()
    values = {name: value.detach() for name, value in {**weights.tensors, **weights.buffers}.items()}
    inputs = found.normalisation.apply(test.inputs).to(head.device)
    return predict(Network(module), values, inputs).argmax(dim=-1).cpu()
