"""Attacks: what a transcript gives away. An attack reads a transcript and returns a finding, never a judgement."""

from __future__ import annotations

from fedleak.attacks.inversion.class_inversion import ClassInversion
from fedleak.attacks.inversion.cosine import Cosine
from fedleak.attacks.inversion.dlg import DLG
from fedleak.attacks.inversion.dlm import DLM
from fedleak.attacks.inversion.dlm_plus import DLMPlus
from fedleak.attacks.inversion.idlg import IDLG
from fedleak.attacks.knowledge import require

__all__ = ["ATTACKS", "require"]

ATTACKS: dict[str, type] = {
    "dlg": DLG,
    "idlg": IDLG,
    "cosine": Cosine,
    "dlm": DLM,
    "dlm_plus": DLMPlus,
    "class_inversion": ClassInversion,
}
