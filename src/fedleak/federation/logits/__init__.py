"""Federations whose clients send predictions on public examples: FedMD, FedGEMS, DS-FL."""

from fedleak.federation.logits.dsfl import DSFL
from fedleak.federation.logits.fedgems import FedGEMS
from fedleak.federation.logits.fedmd import FedMD

__all__ = ["DSFL", "FedGEMS", "FedMD"]
