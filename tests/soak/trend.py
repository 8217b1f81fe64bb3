"""Trend of a figure: slope with a confidence interval, and growth of tables."""

from __future__ import annotations

from math import inf, sqrt
from typing import Final, NamedTuple

BLOCKS: Final = 12
# Of Student's distribution with BLOCKS - 2 degrees of freedom, two-sided.
CONFIDENCE: Final = 0.95
QUANTILE: Final = 2.228
GROWTH_FACTOR: Final = 1.25
GROWTH_MARGIN: Final = 64


class Slope(NamedTuple):
    """Change per hour, with the bounds of its confidence interval."""

    per_hour: float
    lower: float
    upper: float


class Trend:
    """The minima of a figure in `BLOCKS` equal parts of a run, and its maximum.

    Samples are not kept: those of all tables would grow by many MiB per hour themselves.  Minima,
    because neighbouring samples are not independent, and a restart raises some of them.

    :param start: seconds; earlier samples belong to the warm-up
    """

    def __init__(self, start: float, end: float) -> None:
        self._start = start
        self._length = (end - start) / BLOCKS
        self._minima = [inf] * BLOCKS
        self.most = -inf

    def add(self, at: float, value: float) -> None:
        block = int((at - self._start) // self._length)
        if 0 <= block < BLOCKS:
            self._minima[block] = min(self._minima[block], value)
            self.most = max(self.most, value)

    @property
    def first(self) -> float:
        """The first minimum; infinite without samples."""
        return next((value for value in self._minima if value < inf), inf)

    @property
    def last(self) -> float:
        """The last minimum; infinite without samples."""
        return next((value for value in reversed(self._minima) if value < inf), inf)

    @property
    def minima(self) -> tuple[float, ...]:
        """The minimum of each part; infinite without samples."""
        return tuple(self._minima)

    def slope(self) -> Slope | None:
        """Return the slope of the minima; None if a block has no sample."""
        if inf in self._minima:
            return None
        times = [(number + 0.5) * self._length / 3600 for number in range(BLOCKS)]
        middle, mean = sum(times) / BLOCKS, sum(self._minima) / BLOCKS
        spread = sum((at - middle) ** 2 for at in times)
        pairs = list(zip(times, self._minima, strict=True))
        rate = sum((at - middle) * (value - mean) for at, value in pairs) / spread
        rest = sum((value - mean - rate * (at - middle)) ** 2 for at, value in pairs)
        error = QUANTILE * sqrt(rest / (BLOCKS - 2) / spread)
        return Slope(rate, rate - error, rate + error)

    def grows(self) -> bool:
        """Whether the minima of the last quarter are far above all minima of the first half."""
        if inf in self._minima:
            return False
        before, after = max(self._minima[: BLOCKS // 2]), min(self._minima[-BLOCKS // 4 :])
        return after > before * GROWTH_FACTOR + GROWTH_MARGIN
