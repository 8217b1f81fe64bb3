"""Trend of a figure: slope with a confidence interval, and growth of tables."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Final, NamedTuple

BLOCKS: Final = 12
# Of Student's distribution with BLOCKS - 2 degrees of freedom, two-sided.
CONFIDENCE: Final = 0.95
QUANTILE: Final = 2.228
GROWTH_FACTOR: Final = 1.25
GROWTH_MARGIN: Final = 64

Point = tuple[float, float]  # seconds, value


class Slope(NamedTuple):
    """Change per hour, with the bounds of its confidence interval."""

    per_hour: float
    lower: float
    upper: float


def blocks(points: Sequence[Point]) -> list[Sequence[Point]]:
    """Return *points* in `BLOCKS` parts of equal length; none if there are too few."""
    size = len(points) // BLOCKS
    return [points[n * size : (n + 1) * size] for n in range(BLOCKS)] if size else []


def slope(points: Sequence[Point]) -> Slope | None:
    """Return the slope of the minima of blocks; None if there are too few points.

    Minima of blocks: neighbouring samples are not independent, and a restart raises some of them.
    """
    parts = blocks(points)
    if not parts:
        return None
    times = [sum(at for at, _ in part) / len(part) / 3600 for part in parts]
    values = [min(value for _, value in part) for part in parts]
    middle, mean = sum(times) / BLOCKS, sum(values) / BLOCKS
    spread = sum((at - middle) ** 2 for at in times)
    pairs = list(zip(times, values, strict=True))
    rate = sum((at - middle) * (value - mean) for at, value in pairs) / spread
    rest = sum((value - mean - rate * (at - middle)) ** 2 for at, value in pairs)
    error = QUANTILE * sqrt(rest / (BLOCKS - 2) / spread)
    return Slope(rate, rate - error, rate + error)


def grows(points: Sequence[Point]) -> bool:
    """Whether the minima of the last quarter are far above all minima of the first half."""
    parts = blocks(points)
    if not parts:
        return False
    least = [min(value for _, value in part) for part in parts]
    before, after = max(least[: BLOCKS // 2]), min(least[-BLOCKS // 4 :])
    return after > before * GROWTH_FACTOR + GROWTH_MARGIN
