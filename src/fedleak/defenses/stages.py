"""Where a defense acts, for those that can act at more than one stage."""

from __future__ import annotations

from typing import Any, Literal

from fedleak.defenses.base import Stage

__all__ = ["On", "stage_of_choice"]

On = Literal["message", "gradients"]
"""What is sent, or the gradient of every single example at every local step."""


def stage_of_choice(usual: On) -> Any:
    """The `stage` of a defense: read off an instance the one that its field `on` names, off the class the usual one."""
    return _Stage(usual)


class _Stage:
    def __init__(self, usual: On) -> None:
        self.usual = usual

    def __get__(self, instance: Any, owner: type | None = None) -> Stage | None:
        return self.usual if instance is None else instance.on
