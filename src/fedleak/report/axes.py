"""Axes of a small chart: from values to positions in an SVG, with ticks a person would choose."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["Axis", "Box", "decades", "round_ticks"]

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Box:
    """A chart's outer size and, inside it, where the data go. Charts are drawn at this size or smaller."""

    width: int = 360
    height: int = 272
    left: int = 46
    right: int = 22
    top: int = 28
    bottom: int = 40

    @property
    def x(self) -> tuple[float, float]:
        return self.left, self.width - self.right

    @property
    def y(self) -> tuple[float, float]:
        """From the bottom to the top: SVG counts downwards."""
        return self.height - self.bottom, self.top


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic axis from `low` to `high`, drawn from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[tuple[float, str], ...] = ()
    kind: Literal["linear", "log"] = "linear"

    def at(self, value: float) -> float:
        """The position of a value; what lies outside is drawn at the edge."""
        value = min(max(value, self.low), self.high)
        if self.kind == "log":
            share = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    @property
    def marks(self) -> list[tuple[float, str]]:
        """(position, label) of every tick."""
        return [(self.at(value), label) for value, label in self.ticks]


def round_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten inside [low, high]."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def decades(low: float, high: float, most: int = 5) -> list[tuple[float, str]]:
    """Powers of ten inside [low, high], at most so many of them, with labels like 10⁻³. A single one would show no
    scale: then twice and five times a power are marked too."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if first >= last:
        between = [(factor, power) for power in range(first - 1, last + 1) for factor in (1, 2, 5)]
        return [(f * 10.0**p, _label(f, p)) for f, p in between if low <= f * 10.0**p <= high]
    step = max(1, math.ceil((last - first + 1) / most))
    return [(10.0**power, "10" + str(power).translate(SUPERSCRIPT)) for power in range(first, last + 1, step)]


def _label(factor: int, power: int) -> str:
    """Short ones in full, such as 0.05; others like 5·10⁻⁶."""
    return f"{factor * 10.0**power:g}" if -3 <= power <= 3 else f"{factor}·10{str(power).translate(SUPERSCRIPT)}"
