"""The four kinds of findings, and the words for each: images, pictures of classes, copies of models, label counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from fedleak.audit.rows import Row
from fedleak.metrics.nulls import NULLS
from fedleak.report.words import subjects

__all__ = ["EVERYBODY", "KINDS", "Kind", "guess_words", "kind_of", "measure", "one_of", "panel_name", "things"]

Kind = Literal["images", "classes", "model", "counts"]

KINDS: tuple[Kind, ...] = ("images", "classes", "model", "counts")
"""In the order in which they weigh where nothing else tells them apart."""

EVERYBODY = "federation"
"""`where["client"]` of a finding about all clients together."""

MEASURES: Mapping[Kind, str] = {
    "images": "recovered",
    "classes": "attack_accuracy",
    "model": "attack_accuracy",
    "counts": "label_errors",
}

PANELS: Mapping[Kind, str] = {
    "images": "recovered",
    "classes": "recognised",
    "model": "accuracy of the copy",
    "counts": "labels right",
}

GUESSES: Mapping[str, str] = {
    **NULLS,
    "prior": "the prior of the attack, before it saw a message",
    "other_client": "what the messages of a client yield that never held the label",
    "commonest": "always the commonest class",
    "evenly": "labels drawn evenly from the classes",
}


def kind_of(rows: Iterable[Row]) -> Kind:
    """What was judged, by the scores that the rows have. Where nothing was, images."""
    known = list(rows)
    scores = {metric for row in known for metric in row.scores}
    guesses = {name for row in known for name in row.baselines}
    if scores & {"recovered", "psnr", "mse", "lpips"}:
        return "images"
    if scores & {"fidelity", "victim_accuracy"} or ("attack_accuracy" in scores and "commonest" in guesses):
        return "model"
    if scores & {"attack_accuracy", "nearest_public"}:
        return "classes"
    return "counts" if "label_errors" in scores and "evenly" in guesses else "images"


def measure(kind: Kind) -> str:
    """The metric by which a finding of this kind succeeds: a share, of label counts that of the errors."""
    return MEASURES[kind]


def panel_name(kind: Kind) -> str:
    """What a chart of the success has on its axis."""
    return PANELS[kind]


def guess_words(name: str) -> str:
    return GUESSES.get(name, name.replace("_", " "))


def things(kind: Kind, dataset: Any) -> str:
    """What was judged one by one, in the plural."""
    match kind:
        case "images":
            return subjects(dataset)
        case "classes":
            return "people" if subjects(dataset) == "faces" else "classes"
        case "model":
            return "test images"
        case "counts":
            return "labels"


def one_of(kind: Kind, dataset: Any) -> str:
    """One of these things."""
    return {"people": "person", "classes": "class"}.get(things(kind, dataset), things(kind, dataset).removesuffix("s"))
