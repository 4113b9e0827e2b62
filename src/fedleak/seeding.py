"""Randomness with an address. Every call takes its generator; nothing seeds globally.

seeds = Seeds(7)
seeds.generator("client", "client-3", "round", 2)   # always the same stream, independent of every other address
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

__all__ = ["Seeds"]


@dataclass(frozen=True)
class Seeds:
    """A tree of independent random streams under one seed."""

    seed: int
    path: tuple[str, ...] = ()

    def under(self, *address: str | int) -> Seeds:
        """The subtree at an address."""
        return Seeds(self.seed, (*self.path, *map(str, address)))

    def integer(self, *address: str | int) -> int:
        """A 63-bit number for this address."""
        text = "\x1f".join([str(self.seed), *self.path, *map(str, address)])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

    def generator(self, *address: str | int) -> torch.Generator:
        """A CPU generator for this address. Draw on the CPU and move: the same bits on every device."""
        return torch.Generator(device="cpu").manual_seed(self.integer(*address))
