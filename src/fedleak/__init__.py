"""fedleak measures what a federated-learning deployment leaks.

The functions below are imported when they are first used, so that `import fedleak` and `fedleak --help` stay fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedleak.api import attack, judge, run_audit, simulate
    from fedleak.transcript import TranscriptWriter, load_transcript, save_transcript
    from fedleak.types import Examples, PublicSet, Transcript, Truth

_HOMES = {
    "attack": "fedleak.api",
    "judge": "fedleak.api",
    "run_audit": "fedleak.api",
    "simulate": "fedleak.api",
    "TranscriptWriter": "fedleak.transcript",
    "load_transcript": "fedleak.transcript",
    "save_transcript": "fedleak.transcript",
    "Examples": "fedleak.types",
    "PublicSet": "fedleak.types",
    "Transcript": "fedleak.types",
    "Truth": "fedleak.types",
}

__all__ = [
    "Examples",
    "PublicSet",
    "Transcript",
    "TranscriptWriter",
    "Truth",
    "__version__",
    "attack",
    "judge",
    "load_transcript",
    "run_audit",
    "save_transcript",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fedleak' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
