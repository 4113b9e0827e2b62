"""Stealing models from predictions: one loop, and the recipes msa and adamsa."""

from __future__ import annotations

__all__: list[str] = []
