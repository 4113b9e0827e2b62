"""Label errors: how many labels behind an update the attack got wrong, whatever their order."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from fedleak.errors import DataError, ShapeError

__all__ = ["label_errors", "wrong_labels"]


def label_errors(found: Tensor, true: Tensor) -> int:
    """The number of label errors: half the sum over classes of |found count - true count|.

    Where the attack names fewer or more labels than there are, every missing or superfluous label is one error.

    >>> label_errors(torch.tensor([3, 3, 5]), torch.tensor([5, 3, 7]))
    1
    """
    named, there = _counts(found, true)
    # With equal totals both are half the sum of the absolute differences of the counts.
    return max((there - named).total(), (named - there).total())


def wrong_labels(found: Tensor, true: Tensor, partner: Tensor | None = None) -> Tensor:
    """One 0/1 per true label: 1 where the attack did not name it, (n,) float64.

    A label named k times is right for k of the examples that have it: first for those whose matched reconstruction
    (`partner[i]`, the position in `found` of example i, -1 for none) carries that label, then in order. So the sum
    equals `label_errors`, except that superfluous labels (more named than there are) count there and not here.

    >>> wrong_labels(torch.tensor([3, 3, 5]), torch.tensor([5, 3, 7]))
    tensor([0., 0., 1.], dtype=torch.float64)
    """
    left, _ = _counts(found, true)
    wanted: list[int] = true.tolist()
    wrong = torch.ones(len(wanted), dtype=torch.float64)
    partners = [-1] * len(wanted) if partner is None else partner.tolist()
    if len(partners) != len(wanted):
        raise ShapeError(f"partner has {len(partners)} entries, true has {len(wanted)}: one per true label is needed")
    named = [found[at].item() if at >= 0 else None for at in partners]
    matched_first = sorted(range(len(wanted)), key=lambda i: named[i] != wanted[i])
    for i in matched_first:
        if left[wanted[i]] > 0:
            left[wanted[i]] -= 1
            wrong[i] = 0.0
    return wrong


def _counts(found: Tensor, true: Tensor) -> tuple[Counter[int], Counter[int]]:
    for name, labels in (("found", found), ("true", true)):
        if labels.ndim != 1:
            raise ShapeError(f"{name}={tuple(labels.shape)}: labels must be one class index per example, shaped (n,)")
        if labels.dtype.is_floating_point or labels.dtype.is_complex:
            raise DataError(f"{name}.dtype={labels.dtype}: labels must be integers; take the argmax of soft labels")
    return Counter(found.tolist()), Counter(true.tolist())
