"""What an attack must be told, where that depends on how it is set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["ALWAYS", "USES", "needs_with"]

ALWAYS = frozenset({"samples", "batch_size", "epochs", "lr"})
"""What running a client's training again takes."""

USES = frozenset({"momentum"})
"""What is asked for where it is disclosed, and taken to be 0 where it is not."""


def needs_with(by_labels: Mapping[str, frozenset[str]]) -> Any:
    """The `needs` of an attack: read off the class what is always needed, read off an instance also what its `labels`
    ask for. So whoever compares needs with what is disclosed sees what this attack, as it is set, will use."""
    return _Needs(ALWAYS, by_labels)


class _Needs:
    def __init__(self, always: frozenset[str], by_labels: Mapping[str, frozenset[str]]) -> None:
        self.always, self.by_labels = always, by_labels

    def __get__(self, instance: Any, owner: type | None = None) -> frozenset[str]:
        if instance is None:
            return self.always
        return self.always | self.by_labels.get(instance.labels, frozenset())
