"""Inversion of predictions: networks that turn what clients say of public pictures into pictures of private classes."""

from __future__ import annotations

from fedleak.attacks.logits.pli import PLI
from fedleak.attacks.logits.ptbi import PTBI
from fedleak.attacks.logits.tbi import TBI

__all__ = ["PLI", "PTBI", "TBI"]
