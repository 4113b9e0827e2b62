"""Which reconstruction belongs to which original: a pure step before any score.

An attack returns images in no particular order. The assignment is the best one over all permutations (Hungarian
algorithm), by PSNR unless asked otherwise, as fedavg_leakage.txt evaluates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedleak.errors import RefusedError, ShapeError
from fedleak.metrics.pixel import mse_pairs, psnr_of
from fedleak.metrics.structure import ssim_pairs

__all__ = ["COSTS", "Matching", "assign", "match"]


def _psnr_cost(found: Tensor, originals: Tensor) -> Tensor:
    return -psnr_of(mse_pairs(found, originals))


def _ssim_cost(found: Tensor, originals: Tensor) -> Tensor:
    return -ssim_pairs(found, originals)


COSTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"psnr": _psnr_cost, "mse": mse_pairs, "ssim": _ssim_cost}


@dataclass(frozen=True, eq=False)
class Matching:
    """`partner[i]` is the position of the reconstruction given to original i, -1 where none was left for it."""

    partner: Tensor

    @property
    def matched(self) -> Tensor:
        """One bool per original."""
        return self.partner >= 0

    def arrange(self, found: Tensor) -> Tensor:
        """The reconstructions in the order of the originals; NaN, which every metric scores as nothing found, where an
        original has none."""
        if len(found) == 0:
            return found.new_full((len(self.partner), *found.shape[1:]), torch.nan)
        arranged = found[self.partner.clamp(min=0).to(found.device)].clone()
        arranged[~self.matched.to(found.device)] = torch.nan
        return arranged


def match(found: Tensor, originals: Tensor, by: str = "psnr") -> Matching:
    """The assignment of reconstructions to originals with the best total of a metric.

    More originals than reconstructions: the worst-served originals get none. More reconstructions than originals: the
    surplus is ignored.
    """
    if by not in COSTS:
        raise RefusedError(f"by={by!r}: reconstructions are matched by one of {', '.join(COSTS)}")
    return assign(COSTS[by](found, originals))


def assign(cost: Tensor) -> Matching:
    """The cheapest one-to-one assignment for a finite cost matrix (reconstructions, originals)."""
    if cost.ndim != 2:
        raise ShapeError(f"cost={tuple(cost.shape)}: a matrix (reconstructions, originals) is needed")
    rows, columns = linear_sum_assignment(cost.double().cpu().numpy())
    partner = torch.full((cost.shape[1],), -1, dtype=torch.long)
    partner[torch.as_tensor(columns, dtype=torch.long)] = torch.as_tensor(rows, dtype=torch.long)
    return Matching(partner)
