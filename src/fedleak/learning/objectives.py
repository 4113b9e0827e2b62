"""What networks are trained towards: functions of (outputs, *targets) to the scalar mean of a batch.

Cross-entropy, to class indices or to probabilities, is `fedleak.learning.functional.cross_entropy`.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

__all__ = ["absolute_error", "divergence", "entropy"]


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean of |output - target| over all numbers of a batch: FedMD's digest of the consensus."""
    return F.l1_loss(outputs, targets)


def divergence(outputs: Tensor, targets: Tensor) -> Tensor:
    """KL(targets || softmax(outputs)): the sum over classes, the mean over examples ("batchmean"); in nats."""
    return F.kl_div(F.log_softmax(outputs, dim=-1), targets, reduction="none").sum(dim=-1).mean()


def entropy(logits: Tensor) -> Tensor:
    """How unsure softmax(logits) is, in nats, example by example: (..., classes) to (...)."""
    log = F.log_softmax(logits, dim=-1)
    return -(log.exp() * log).sum(dim=-1)
