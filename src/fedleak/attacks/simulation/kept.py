"""What a step of SGD that is written out leaves for its way back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedleak.attacks.simulation.dense_steps import DenseKept

__all__ = ["Kept"]


@dataclass(frozen=True, eq=False)
class Kept:
    """Block by block in the order of the network, and of the dense layers. Pictures are (networks, images, height,
    width, channels)."""

    kernels: list[Tensor]
    """Of the convolutions, as they were before the step."""
    open: list[Tensor]
    """Where a block's ReLU is open: above zero, in a layout of its own."""
    pools: list[Tensor]
    """Outputs of all blocks but the last."""
    pulled: list[Tensor]
    """The loss's slope by the output of every block."""
    dense: DenseKept

    def flat(self) -> list[Tensor]:
        return [*self.kernels, *self.open, *self.pools, *self.pulled, *self.dense.flat()]

    @staticmethod
    def of(flat: list[Tensor], blocks: int) -> Kept:
        rest = iter(flat)
        kernels, lets, pools, pulled = (
            [next(rest) for _ in range(size)] for size in (blocks, blocks, blocks - 1, blocks)
        )
        return Kept(kernels, lets, pools, pulled, DenseKept.of(list(rest)))
