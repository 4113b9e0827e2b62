"""What a call of the simulation is given, and under which precision it runs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedleak.errors import ShapeError
from fedleak.learning.precision import Precision, products_in

__all__ = ["Precision", "check_call", "products_in", "shares"]


def check_call(inputs: Tensor, labels: Tensor, mask: Tensor | None, given: Sequence[Tensor]) -> None:
    if inputs.dim() != 6 or not all(inputs.shape[:3]):
        raise ShapeError(f"inputs of shape {tuple(inputs.shape)}: expected (victims, steps, images, C, H, W)")
    for name, one in (("labels", labels), ("mask", mask)):
        if one is not None and one.shape != inputs.shape[:3]:
            raise ShapeError(f"{name} of shape {tuple(one.shape)}: expected {tuple(inputs.shape[:3])}")
    for one in given:
        if len(one) != len(inputs):
            raise ShapeError(f"given for {len(one)} victims: there are {len(inputs)}")


def shares(mask: Tensor, like: Tensor) -> Tensor:
    """What every image has in its batch's mean: 1/n of the n that are there, 0 of those that are not."""
    held = (mask != 0).to(like.dtype)
    return held / held.sum(dim=-1, keepdim=True).clamp_min(1)
