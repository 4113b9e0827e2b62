"""How the report says things: plain words for names, numbers with their units, lists in prose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from fedleak.metrics.registry import METRICS

__all__ = [
    "HEADINGS",
    "MEANINGS",
    "between",
    "between_points",
    "cases",
    "decibel",
    "defense_name",
    "is_attackers",
    "knowledge",
    "known_by_name",
    "metric_unit",
    "number",
    "percent",
    "plural",
    "points",
    "prose",
    "sent_by",
    "setting",
    "subjects",
    "with_strengths",
]

SENT: Mapping[str, str] = {
    "fedsgd": "gradients",
    "fedavg": "weights",
    "fedmd": "predictions",
    "fedgems": "predictions",
    "dsfl": "predictions",
}

SUBJECTS: Mapping[str, str] = {
    "orl": "faces",
    "lfw": "faces",
    "lag": "faces",
    "facescrub": "faces",
    "digits": "digits",
    "mnist": "digits",
    "svhn": "digits",
    "emnist": "characters",
    "femnist": "characters",
}

KNOWLEDGE: Mapping[str, str] = {
    "samples": "the number of images",
    "batch_size": "the batch size",
    "epochs": "the number of local epochs",
    "local_epochs": "the number of local epochs",
    "lr": "the learning rate",
    "learning_rate": "the learning rate",
    "momentum": "the momentum",
    "label_counts": "how often each label occurs",
    "unique_labels": "the number of different labels",
    "labels": "the labels",
    "batch_labels": "the labels of every batch",
    "target_labels": "which labels the clients hold",
}

HEADINGS: Mapping[str, str] = {
    "recovered": "Recovered",
    "psnr": "PSNR, dB",
    "ssim": "SSIM",
    "mse": "MSE",
    "lpips": "LPIPS",
    "label_errors": "Label errors",
    "attack_accuracy": "Attack accuracy",
    "nearest_public": "Nearest public",
    "fidelity": "Fidelity",
    "victim_accuracy": "Victim accuracy",
    "utility": "Test accuracy",
}
"""Headings, in the order in which the columns of a table stand."""


MEANINGS: Mapping[str, str] = {
    "recovered": "share of the private images whose PSNR is above the threshold",
    "psnr": "how far the pixels are off, in decibels: 10 more is a tenth of the squared error. Above 30 a small "
    "picture can hardly be told from the original",
    "ssim": "how much of the structure (edges, contrast) is the same: 1 is the same picture, 0 has nothing in common",
    "mse": "mean squared error of the pixels, which go from 0 to 1: what PSNR is made of",
    "lpips": "how different a network trained on photos finds the two: 0 is the same picture",
    "label_errors": "share of the private labels that the attack got wrong",
    "attack_accuracy": "of pictures, the share of private classes whose picture is more like them than like any other "
    "class; of a copied model, the share of test images it gets right",
    "nearest_public": "share of the private classes whose picture is most like the public images of that class",
    "fidelity": "share of the test images on which the copy says what its victim says",
    "victim_accuracy": "share of the test images that the victim's model gets right",
}
"""What each column says, for somebody who never read the papers."""


class Ranged(Protocol):
    """A mean with its interval."""

    @property
    def mean(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def sent_by(protocol: Any) -> str:
    """What a client sends in this protocol."""
    return SENT.get(str(protocol), "messages")


def defense_name(where: Mapping[str, Any]) -> str:
    """The defense as a person would say it."""
    name = str(where.get("defense") or "none")
    return "no defense" if name in ("none", "identity") else name


def with_strengths(where: Mapping[str, Any]) -> str:
    """The defense with what was swept of it: an arm that has a name of its own is called alike at every strength.

    >>> with_strengths({"defense": "shipped", "defenses.2.sigma": 0.3})
    'shipped(sigma=0.3)'
    >>> with_strengths({"defense": "gaussian(sigma=1)", "defenses.2.sigma": 1.0})
    'gaussian(sigma=1)'
    """
    name = str(where.get("defense") or "none")
    swept = ((key.rpartition(".")[2], value) for key, value in where.items() if key.startswith("defenses."))
    said = (f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in swept)
    added = [one for one in said if one not in name]
    return f"{name}({', '.join(added)})" if added else name


def subjects(dataset: Any) -> str:
    """What the private images show."""
    return SUBJECTS.get(str(dataset), "images")


def plural(count: int, word: str) -> str:
    """1 seed, 2 seeds. The word comes in its plural."""
    return f"{count} {word[:-1] if count == 1 else word}"


def prose(items: Iterable[str]) -> str:
    """a, b and c."""
    found = list(items)
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}" if found else ""


def knowledge(granted: Sequence[str], protocol: Any = None) -> str:
    """What the attacker was told, as the end of a sentence. Predictions come with public images."""
    shared = "the public images" if sent_by(protocol) == "predictions" else ""
    told = [KNOWLEDGE.get(name, name.replace("_", " ")) for name in granted]
    if not told:
        return f"knowing nothing but {shared or 'the model'} and what crossed the wire"
    return f"knowing only {prose([*([shared] if shared else []), *told])}"


def known_by_name(names: Iterable[str]) -> str:
    """What the names of knowledge stand for: `lr: the learning rate; samples: the number of images`."""
    return "; ".join(f"{name}: {KNOWLEDGE[name]}" for name in sorted(names) if name in KNOWLEDGE)


def is_attackers(key: str) -> bool:
    """Whether a key of `where` is a setting of the attack, not of the federation."""
    return key == "preset" or key.startswith("attack")


def setting(where: Mapping[str, Any], keys: Iterable[str]) -> str:
    """protocol.lr = 0.1, data.clients = 4: what `where` says about these keys."""
    return ", ".join(f"{key} = {where[key]}" for key in keys if where.get(key) is not None)


def recipe(where: Mapping[str, Any], among: Iterable[Mapping[str, Any]]) -> str:
    """An attack with its settings, and with its preset where another preset of it stands beside it."""
    attack = where.get("attack")
    presets = {other.get("preset") for other in among if other.get("attack") == attack}
    keys = [*(["preset"] if len(presets) > 1 else []), *(key for key in where if key.startswith("attack."))]
    return " · ".join(filter(None, [str(attack), setting(where, keys)]))


def metric_unit(metric: str, value: float) -> str:
    """A metric's value as a table prints it."""
    if metric in METRICS and METRICS[metric].unit == "share":
        return percent(value)
    if metric == "psnr":
        return _one_decimal(value)
    return number(value)


def number(value: float) -> str:
    """Three significant digits, without exponents where they can be avoided; a true minus sign."""
    text = f"{value:.3f}" if 0.0095 <= abs(value) < 10 or value == 0 else f"{value:.3g}"
    return text.replace("-", "−")


def percent(share: float) -> str:
    """Whole per cent where the value is whole, otherwise one decimal."""
    value = round(100 * share, 1)
    return (f"{value:.0f} %" if value == int(value) else f"{value:.1f} %").replace("-", "−")


def decibel(value: float) -> str:
    return f"{_one_decimal(value)} dB"


def _one_decimal(value: float) -> str:
    """With a true minus sign, and none before a zero."""
    return f"{round(value, 1) + 0.0:.1f}".replace("-", "−")


def points(share: float) -> str:
    """A difference of two shares in percentage points."""
    return plural_points(round(100 * share, 1))


def between_points(found: Ranged) -> str:
    """low to high of a difference of two shares."""
    return f"{points(found.low).partition(' ')[0]} to {points(found.high)}"


def plural_points(value: float) -> str:
    text = f"{value:.1f}".replace("-", "−")
    return f"{text} point" if abs(value) == 1 else f"{text} points"


def between(metric: str, found: Ranged) -> str:
    """low to high, as the table prints it."""
    if metric in METRICS and METRICS[metric].unit == "share" and found.high - found.low > 0.1:
        return f"{100 * found.low:.0f} to {100 * found.high:.0f} %"  # decimals of a wide interval are noise
    low, high = metric_unit(metric, found.low), metric_unit(metric, found.high)
    return f"{low.removesuffix(' %')} to {high}"


def cases(count: float, total: int) -> str:
    return f"{count:.0f} of {total}"
