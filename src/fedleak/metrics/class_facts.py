"""What stands beside the verdict on pictures of classes: what tells a weak attack from a weak choice of client, and
what the evaluation of the authors' own code says of the same pictures.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from fedleak.errors import DataError
from fedleak.metrics.rivals import Rivals
from fedleak.metrics.structure import ssim
from fedleak.types import RecoveredClasses, Truth

__all__ = ["at_places", "candidates_of", "class_facts", "held_by_somebody", "holders", "places_of"]

RELEASED_RULE = "mean"
"""The rule by which the authors' code chooses a client (`RecoveredClasses.by_rule`)."""
MOST_COMPARED = 20
"""Clients whose pictures are all compared with each other; the number of pairs grows with its square."""


def holders(truth: Truth) -> dict[int, set[str]]:
    """Who holds examples of each private label."""
    held: dict[int, set[str]] = {}
    for owner, label in zip(truth.owners, truth.private.labels.tolist(), strict=True):
        held.setdefault(label, set()).add(owner)
    return held


def held_by_somebody(targets: Sequence[int], truth: Truth) -> None:
    """Refuses target labels none of which any client holds: there is nothing to find, and nothing to judge by."""
    held = set(holders(truth))
    if not held & set(targets):
        raise DataError(
            f"target_labels={_few(targets)}: no client holds any of them; the clients hold {_few(sorted(held))}; look "
            "for those (a recording: --known target_labels=[...], in Python known={...})"
        )


def _few(labels: Sequence[int]) -> str:
    return f"[{', '.join(map(str, labels[:10]))}{', ...' if len(labels) > 10 else ''}]"


def places_of(named: Tensor, wanted: Tensor) -> list[int]:
    """For every wanted label the position of the first picture named by it, -1 for none."""
    where: dict[int, int] = {}
    for at, label in enumerate(named.tolist()):
        where.setdefault(label, at)
    return [where.get(label, -1) for label in wanted.tolist()]


def at_places(pictures: Tensor, places: Sequence[int], shape: torch.Size) -> Tensor:
    """The pictures at these places, on the CPU; where there is none, one that is not finite."""
    found = torch.full((len(places), *shape), float("nan"))
    for at, place in enumerate(places):
        if place >= 0:
            found[at] = pictures[place].detach().cpu()
    return found


def class_facts(
    found: RecoveredClasses, truth: Truth, wanted: Tensor, places: Sequence[int], rivals: Rivals
) -> dict[str, object]:
    """Whether copies of private images are public; the accuracy after each round; for each of `labels` the client whose
    picture was chosen, how often that client holds the label, and the accuracy if it always did; accuracy and choice
    under every rule; and `as_released`, label by label, what the authors' evaluation gives: their choice of client,
    their SSIM."""
    shape = truth.private.inputs.shape[1:]
    facts: dict[str, object] = {"twins": truth.twins, "labels": wanted.tolist()}
    if len(found.by_round) > 1:
        facts["accuracy_by_round"] = [rivals.accuracy(at_places(made, places, shape)) for made in found.by_round]
    of_label = holders(truth)
    held = [of_label.get(label, set()) for label in wanted.tolist()]
    if found.candidates is not None and len(found.senders) > 1:
        owners = [next((sender for sender in found.senders if sender in of), "") for of in held]
        facts["owner_accuracy"] = rivals.accuracy(candidates_of(found, owners, places, shape))
        facts["similarity"] = _similarity(found, held, places)
    if found.chosen:
        facts["chosen_client"] = [found.chosen[place] if place >= 0 else None for place in places]
        facts["chosen_client_right"] = _share_right(found.chosen, held, places)
    taken = at_places(found.inputs, places, shape)
    if found.candidates is not None and len(found.senders) > 1 and found.by_rule:
        by_rule = {}
        for rule, chosen in found.by_rule.items():
            pictures = candidates_of(found, [chosen[place] if place >= 0 else "" for place in places], places, shape)
            right = _share_right(chosen, held, places)
            by_rule[rule] = {"accuracy": rivals.accuracy(pictures), "chosen_client_right": right}
            taken = pictures if rule == RELEASED_RULE else taken
        facts["by_rule"] = by_rule
    if found.prior is not None:  # a picture from predictions; those from gradients were judged otherwise
        judged = rivals.scores(taken.to(rivals.means.device), ["attack_accuracy", "ssim"], "released")
        facts["as_released"] = dict(judged)
    return facts


def candidates_of(found: RecoveredClasses, senders: Sequence[str], places: Sequence[int], shape: torch.Size) -> Tensor:
    """For every wanted label the candidate of the client that is named for it; none where nobody is named."""
    assert found.candidates is not None
    pictures = torch.full((len(places), *shape), float("nan"))
    for at, (sender, place) in enumerate(zip(senders, places, strict=True)):
        if sender and place >= 0:
            pictures[at] = found.candidates[found.senders.index(sender), place].detach().cpu()
    return pictures


def _similarity(found: RecoveredClasses, held: Sequence[set[str]], places: Sequence[int]) -> dict[str, list[float]]:
    """The first term of eq. 11 as a mean (figure 4 of pli.txt): how like the other clients' pictures of a label one is,
    of clients that hold the label and of clients that do not. 7x7 uniform windows, as the choice itself."""
    assert found.candidates is not None
    named = [(of, place) for of, place in zip(held, places, strict=True) if place >= 0]
    if len(found.senders) > MOST_COMPARED or not named:
        return {}
    pictures = torch.nan_to_num(found.candidates[:, [place for _, place in named]], nan=0.5).clamp(0, 1)
    total = torch.zeros(pictures.shape[:2], dtype=torch.float64, device=pictures.device)
    for one, other in itertools.combinations(range(len(pictures)), 2):
        alike = ssim(pictures[one], pictures[other], window="uniform")
        total[one] += alike
        total[other] += alike
    mean = (total / (len(pictures) - 1)).tolist()
    split: dict[str, list[float]] = {"holds the label": [], "does not": []}
    for sender, values in zip(found.senders, mean, strict=True):
        for (of, _), value in zip(named, values, strict=True):
            split["holds the label" if sender in of else "does not"].append(round(value, 6))
    return split


def _share_right(chosen: Sequence[str], held: Sequence[set[str]], places: Sequence[int]) -> float:
    """How often the chosen client holds the label, over the labels that were named."""
    right = [chosen[place] in of for of, place in zip(held, places, strict=True) if place >= 0]
    return sum(right) / max(len(right), 1)
