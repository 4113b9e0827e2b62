"""In which precision products of float32 are computed on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

__all__ = ["Precision", "products_in"]

Precision = Literal["float32", "tf32"]


@contextmanager
def products_in(precision: Precision) -> Iterator[None]:
    """Products of float32 as stated, and as before afterwards: torch's convolutions round to TF32 on a GPU unless they
    are told not to, its matrix products do not unless they are told to."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
