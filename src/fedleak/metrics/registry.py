"""Every metric fedleak knows by name, and what counts as recovered.

A metric yields one number per example; means and intervals belong to the report.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fedleak.errors import RefusedError

__all__ = ["DEFAULT_METRICS", "METRICS", "Kind", "Metric", "NotAvailable", "default_threshold", "known_metrics"]


Kind = Literal["images", "counts", "classes", "model", "federation"]
"""What is judged: recovered images, label counts, pictures of classes, a stolen model, or the federation itself."""


@dataclass(frozen=True)
class Metric:
    """What a metric is, for `fedleak list metrics`, the report and the documentation.

    `unit` is "share" where every value is 0 or 1 and the mean is a share. `judges` says which kinds of finding it means
    something for; "federation" is one value per test example, whatever the attack.
    `nothing` is the score of an original for which nothing usable was found: no reconstruction, or one with a
    non-finite pixel. An error of 1 (0 dB) is what black scores on white: no constant image in range does worse.
    """

    name: str
    unit: str
    better: Literal["higher", "lower"]
    description: str
    judges: tuple[Kind, ...]
    nothing: float


METRICS: dict[str, Metric] = {
    "mse": Metric(
        "mse", "squared pixel", "lower", "mean squared error of pixels in [0, 1], unclipped", ("images",), 1.0
    ),
    "psnr": Metric("psnr", "dB", "higher", "10 log10(1 / MSE), at most 120 dB", ("images",), 0.0),
    "ssim": Metric(
        "ssim",
        "index",
        "higher",
        "structural similarity, 11x11 Gaussian window (sigma 1.5), range 1",
        ("images", "classes"),
        0.0,
    ),
    "lpips": Metric(
        "lpips",
        "distance",
        "lower",
        "LPIPS v0.1 (AlexNet) of the picture clipped to [0, 1]; grey repeated to 3 channels, the shorter side of "
        "smaller images upsampled to 64",
        ("images",),
        1.0,
    ),
    "recovered": Metric("recovered", "share", "higher", "1 where PSNR exceeds the row's threshold", ("images",), 0.0),
    "label_errors": Metric(
        "label_errors",
        "share",
        "lower",
        "1 where the label is missing from those the attack named; the sum is the number of label errors",
        ("images", "counts"),
        1.0,
    ),
    "attack_accuracy": Metric(
        "attack_accuracy",
        "share",
        "higher",
        "1 per private class where the picture found for it is more similar (SSIM) to that class's mean private image "
        "than to any other class's, private or public; of a stolen model, 1 where it classifies a test example right",
        ("classes", "model"),
        0.0,
    ),
    "nearest_public": Metric(
        "nearest_public",
        "share",
        "lower",
        "1 per private class where the picture found for it is most similar to the public images of that class",
        ("classes",),
        0.0,
    ),
    "fidelity": Metric(
        "fidelity", "share", "higher", "1 where a stolen model and its victim agree on a test example", ("model",), 0.0
    ),
    "victim_accuracy": Metric(
        "victim_accuracy",
        "share",
        "higher",
        "1 where the victim's model classifies a test example right",
        ("model",),
        0.0,
    ),
    "utility": Metric(
        "utility",
        "share",
        "higher",
        "1 where the final global model classifies a test example right; in the logit protocols the share of the "
        "clients' own models that do",
        ("federation",),
        0.0,
    ),
}

DEFAULT_METRICS = (
    "psnr",
    "ssim",
    "mse",
    "recovered",
    "label_errors",
    "attack_accuracy",
    "nearest_public",
    "fidelity",
    "victim_accuracy",
)
"""What is asked for where nobody says otherwise: all but LPIPS, whose weights fedleak does not ship. Each is computed
where it means something for what an attack found. A test holds that none is forgotten here."""


@dataclass(frozen=True)
class NotAvailable:
    """A metric that cannot be computed here. A value and not an exception: the rest of the run goes on.

    The reason is printed in rows, so it names no path.
    """

    reason: str

    def __str__(self) -> str:
        return f"not available, because {self.reason}"


def known_metrics(names: Iterable[str]) -> tuple[str, ...]:
    """The names, or an error that lists all unknown ones."""
    asked = tuple(names)
    unknown = [name for name in asked if name not in METRICS]
    if unknown:
        raise RefusedError(f"metrics={', '.join(map(repr, unknown))}: not one of {', '.join(METRICS)}")
    return asked


_SINGLE_IMAGE_DB = 30.0
_SEVERAL_IMAGES_DB = {"femnist": 20.0, "digits": 20.0, "mnist": 20.0, "cifar100": 19.0}


def default_threshold(dataset: str, examples_per_update: int) -> float:
    """The PSNR in dB above which an image counts as recovered.

    30 dB for one image behind an update (dlm.txt). For several, 20 dB on FEMNIST and digits and 19 dB on CIFAR-100
    (fedavg_leakage.txt); 30 dB on data sets for which no paper states another.
    """
    if examples_per_update > 1:
        return _SEVERAL_IMAGES_DB.get(dataset, _SINGLE_IMAGE_DB)
    return _SINGLE_IMAGE_DB
