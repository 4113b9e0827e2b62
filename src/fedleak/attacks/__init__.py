"""Attacks: what a transcript gives away. An attack reads a transcript and returns a finding, never a judgement."""

from __future__ import annotations

from fedleak.attacks.inversion.class_inversion import ClassInversion
from fedleak.attacks.inversion.cosine import Cosine
from fedleak.attacks.inversion.dlg import DLG
from fedleak.attacks.inversion.dlm import DLM
from fedleak.attacks.inversion.dlm_plus import DLMPlus
from fedleak.attacks.inversion.idlg import IDLG
from fedleak.attacks.knowledge import require, used
from fedleak.attacks.logits import PLI, PTBI, TBI
from fedleak.attacks.simulation.fedavg_simulation import FedAvgSimulation
from fedleak.attacks.simulation.label_counts import CountLabels
from fedleak.attacks.simulation.sme import SME
from fedleak.attacks.stealing.adamsa import AdaMSA
from fedleak.attacks.stealing.msa import MSA

__all__ = ["ATTACKS", "require", "used"]

ATTACKS: dict[str, type] = {
    "dlg": DLG,
    "idlg": IDLG,
    "cosine": Cosine,
    "dlm": DLM,
    "dlm_plus": DLMPlus,
    "class_inversion": ClassInversion,
    "tbi": TBI,
    "ptbi": PTBI,
    "pli": PLI,
    "fedavg_simulation": FedAvgSimulation,
    "sme": SME,
    "label_counts": CountLabels,
    "msa": MSA,
    "adamsa": AdaMSA,
}
