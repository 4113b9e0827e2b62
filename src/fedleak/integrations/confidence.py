"""How sure is an attack when nobody knows the truth? `fedleak attack` without `--truth` says it too."""

from __future__ import annotations

from fedleak.audit.confidence import Confidence, confidence, noise_instead

__all__ = ["Confidence", "confidence", "noise_instead"]
