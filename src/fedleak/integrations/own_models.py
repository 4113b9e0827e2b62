"""Recordings of networks as people write them, made ready for an attack, and secure aggregation of recordings.

`fedleak.attack(..., model=Net)` and `fedleak attack --model` do it by themselves.
"""

from __future__ import annotations

from fedleak.learning.own_models import attackable, prepare
from fedleak.learning.secure_sum import summed

__all__ = ["attackable", "prepare", "summed"]
