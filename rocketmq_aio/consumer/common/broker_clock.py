"""What time it is at a broker, learned from its answers, whatever the clock here says."""

from __future__ import annotations

from typing import Final

STALE_SECONDS: Final = 60.0  # clocks drift: a measurement this old gives way to any newer one


class BrokerClock:
    """Relates the event loop's clock to a broker's; both in seconds.

    The answer that travelled fastest tells the difference best.
    """

    def __init__(self) -> None:
        self._lag: float | None = None
        self._measured_at = 0.0

    def now_ms(self, now: float) -> int:
        """Return the broker's time at *now*, in ms since 1970; 0 while it is not known."""
        return 0 if self._lag is None else int((now - self._lag) * 1000)

    def heard(self, broker_ms: int, asked_at: float, now: float) -> float:
        """An answer stamped *broker_ms* came *now*; return its age, at most."""
        lag, longest = now - broker_ms / 1000, now - asked_at
        known = self._lag
        # Nothing is older than its request: else one of the clocks was set.
        age = longest if known is None else min(max(0.0, lag - known), longest)
        if known is None or lag < known or lag - known > longest or self._is_stale(now):
            self._lag, self._measured_at = lag, now
        return age

    def _is_stale(self, now: float) -> bool:
        return now - self._measured_at > STALE_SECONDS
