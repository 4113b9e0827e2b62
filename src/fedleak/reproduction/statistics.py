"""The statistics the papers print, each from one row to numbers that are averaged.

An entry gives None for an example that the statistic leaves out. Percent where the paper prints percent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedleak.audit.rows import Row
from fedleak.metrics.divergence import Bound
from fedleak.reproduction.evidence import Evidence

__all__ = ["STATISTICS", "Statistic"]

Numbers = Sequence[float | None]


@dataclass(frozen=True)
class Statistic:
    """How a number comes about. `one` is what a success is printed as where every value is a success or 0: 100 for a
    percentage, 1 for a share. `of_federation`: it stands in the federation's own row, whatever the attack.
    `reads` names the metrics that a specification must ask for. `beside` is the statistic whose published number this
    one is to be compared with; with `less` it is that number minus the published one of `less`. `may_lack`: where rows
    that are fine have no such number, nothing has failed: an attack with one network for all clients has no other
    client's picture."""

    of: Callable[[Row, Evidence], Numbers]
    reads: tuple[str, ...] = ()
    one: float | None = None
    of_federation: bool = False
    beside: str = ""
    less: str = ""
    may_lack: bool = False


def _plain(metric: str, factor: float = 1.0, one: float | None = None) -> Statistic:
    return Statistic(lambda row, _: [factor * value for value in row.scores.get(metric, [])], (metric,), one)


def _baseline(name: str, metric: str, factor: float = 1.0, one: float | None = None) -> Statistic:
    return Statistic(
        lambda row, _: [factor * value for value in row.baselines.get(name, {}).get(metric, [])], (metric,), one
    )


def _over_the_prior(row: Row, evidence: Evidence) -> Numbers:
    """SSIM of the picture less that of the prior, label by label."""
    prior = row.baselines.get("prior", {}).get("ssim", [])
    return [ours - theirs for ours, theirs in zip(row.scores.get("ssim", []), prior, strict=False)]


def _other_client_over_the_prior(metric: str, factor: float = 1.0) -> Statistic:
    """What a client yields that never held the label, less the prior, label by label: 0 or less where its messages say
    nothing of the label that the public set does not say."""

    def of(row: Row, evidence: Evidence) -> Numbers:
        other, prior = (row.baselines.get(name, {}).get(metric, []) for name in ("other_client", "prior"))
        return [factor * (ours - theirs) for ours, theirs in zip(other, prior, strict=False)]

    return Statistic(of, (metric,), may_lack=True)


def _when_recovered(metric: str, otherwise: float | None) -> Statistic:
    """The recovered examples as they are; the others count as `otherwise`, or not at all (None)."""
    return Statistic(
        lambda row, _: [
            value if recovered else otherwise
            for value, recovered in zip(row.scores.get(metric, []), row.scores.get("recovered", []), strict=False)
        ],
        (metric, "recovered"),
    )


def _loss_at_the_start(row: Row, evidence: Evidence) -> Numbers:
    losses = evidence.losses(row)
    return [losses[0][1]] if losses else []


def _first_recovered(row: Row, evidence: Evidence) -> Numbers:
    """The first iteration, among those of which a picture was kept, at which an image passes the threshold."""
    taken = evidence.psnrs(row)
    if not taken or row.threshold is None:
        return []
    passed = np.stack([values for _, values in taken]) > row.threshold
    return [taken[int(of.argmax())][0] if of.any() else None for of in passed.T]


def _wrong_labels_of_a_client(row: Row, evidence: Evidence) -> Numbers:
    """How many labels of a client are wrong: the paper averages these over clients, not the share over examples."""
    wrong = row.scores.get("label_errors", [])
    return [float(sum(wrong))] if wrong else []


def _one_epoch(which: slice) -> Statistic:
    """Every image's PSNR in the pictures of single epochs, before they are averaged (`per_epoch` keeps them, in order,
    and after the last one their mean)."""

    def of(row: Row, evidence: Evidence) -> Numbers:
        taken = [values for _, values in evidence.psnrs(row)][:-1][which]
        return np.stack(taken).mean(axis=0).tolist() if taken else []

    return Statistic(of, ("psnr",))


def _best_round(row: Row, evidence: Evidence) -> Numbers:
    """Accuracy of a stolen model after its best round on the test set: nobody can choose that round without the set."""
    best = evidence.facts(row).get("upper_bound_accuracy")
    return [] if best is None else [100.0 * float(best)]


def _as_released(metric: str, factor: float = 1.0, one: float | None = None) -> Statistic:
    """What the evaluation of the authors' code gives: their choice of client, their SSIM."""

    def of(row: Row, evidence: Evidence) -> Numbers:
        said = evidence.facts(row).get("as_released", {})
        return [factor * float(value) for value in said.get(metric, [])]

    # The published numbers were made with that evaluation.
    return Statistic(of, ("attack_accuracy",), one, beside=metric)


def _owner_chosen(row: Row, evidence: Evidence) -> Numbers:
    """How often, in per cent, the picture was taken from a client that holds the label."""
    share = evidence.facts(row).get("chosen_client_right")
    return [] if share is None else [100.0 * float(share)]


def _distance(row: Row, evidence: Evidence) -> Numbers:
    """How well a small network tells the public images from private ones: 0 not at all, 2 always."""
    said = evidence.facts(row).get("theorem_2")
    return [] if said is None else [float(said["distance"])]


def _risk_bound(row: Row, evidence: Evidence) -> Numbers:
    """Theorem 2: by how many points the risk on the public mixture can differ from that on private images, lambda
    left out where it is unknown."""
    said = evidence.facts(row).get("theorem_2")
    if said is None:
        return []
    bound = Bound(said["alpha"], said["distance"], said["lambda"])
    return [100.0 * (bound.known_part if bound.value is None else bound.value)]


def _gap(row: Row, evidence: Evidence) -> Numbers:
    """By how much the victim is better than its copy, test example by test example, in points."""
    victim, copy = row.scores.get("victim_accuracy", []), row.scores.get("attack_accuracy", [])
    return [100.0 * (theirs - ours) for theirs, ours in zip(victim, copy, strict=True)]


FACES: dict[str, Statistic] = {
    "attack_accuracy": _plain("attack_accuracy", 100.0, one=100.0),
    # To the mean private image of the label, at the final round.
    "ssim": _plain("ssim"),
    "nearest_public": _plain("nearest_public", 100.0, one=100.0),
    # What the attack believed before it saw a logit, and what a client yields that never held the label.
    "prior_accuracy": _baseline("prior", "attack_accuracy", 100.0, one=100.0),
    "prior_ssim": _baseline("prior", "ssim"),
    "other_client_accuracy": replace(_baseline("other_client", "attack_accuracy", 100.0, one=100.0), may_lack=True),
    "other_client_over_prior": _other_client_over_the_prior("attack_accuracy", 100.0),
    "other_client_over_prior_ssim": _other_client_over_the_prior("ssim"),
    # The same pictures, chosen and judged as the authors' code does it: what the published numbers were made with.
    "as_released_accuracy": _as_released("attack_accuracy", 100.0, one=100.0),
    "as_released_ssim": _as_released("ssim"),
    "owner_chosen": Statistic(_owner_chosen, ("attack_accuracy",), may_lack=True),
    "gain_over_prior": Statistic(_over_the_prior, ("ssim",)),
    "loss_final": Statistic(lambda row, evidence: [evidence.loss(row)]),
}

STATISTICS: dict[str, dict[str, Statistic]] = {
    "dlm": {
        "acc": _plain("recovered", 100.0, one=100.0),
        # What the columns of the tables fit: every failed example counts as 0.
        "psnr": _when_recovered("psnr", otherwise=0.0),
        "psnr_success": _when_recovered("psnr", otherwise=None),
        "psnr_all": _plain("psnr"),
        "ssim": _plain("ssim"),
        # A failed picture has no meaningful distance to the original.
        "lpips": _when_recovered("lpips", otherwise=None),
        "label_errors": _plain("label_errors"),
        "loss_start": Statistic(_loss_at_the_start),
        "loss_final": Statistic(lambda row, evidence: [evidence.loss(row)]),
        "first_recovered": Statistic(_first_recovered, ("psnr",)),
        "utility": Statistic(lambda row, _: row.scores.get("utility", []), one=1.0, of_federation=True),
    },
    "fedavg_leakage": {
        "recovered_pct": _plain("recovered", 100.0, one=100.0),
        "psnr": _plain("psnr"),
        "label_errors": Statistic(_wrong_labels_of_a_client, ("label_errors",)),
        "psnr_epoch": _one_epoch(slice(None)),
        "psnr_first_epoch": _one_epoch(slice(0, 1)),
        "psnr_last_epoch": _one_epoch(slice(-1, None)),
        "utility": Statistic(lambda row, _: row.scores.get("utility", []), one=1.0, of_federation=True),
    },
    "adamsa": {
        "attack_accuracy": _plain("attack_accuracy", 100.0, one=100.0),
        "victim_accuracy": _plain("victim_accuracy", 100.0, one=100.0),
        "fidelity": _plain("fidelity", 100.0, one=100.0),
        "gap": Statistic(
            _gap, ("victim_accuracy", "attack_accuracy"), beside="victim_accuracy", less="attack_accuracy"
        ),
        # An upper bound, and called so in the notes of every table that prints it.
        "best_accuracy": Statistic(_best_round, ("attack_accuracy",)),
        "domain_distance": Statistic(_distance, ("attack_accuracy",)),
        "risk_bound": Statistic(_risk_bound, ("attack_accuracy",)),
        # Of each test example the share of the clients that are right: not successes and failures.
        "utility": Statistic(lambda row, _: [100.0 * v for v in row.scores.get("utility", [])], of_federation=True),
    },
    "pli": FACES,
    "ptbi": FACES,
}
"""By paper: the same word means different averages in different papers."""
