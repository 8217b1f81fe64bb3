"""Broker clock: estimates the time at a broker from its responses."""

from __future__ import annotations

from typing import Final

STALE_SECONDS: Final = 60.0  # clocks drift: any measurement replaces one this old


class BrokerClock:
    """Relates `boottime` to a broker's; both in seconds.

    The fastest response gives the best estimate.
    """

    def __init__(self) -> None:
        self._lag: float | None = None
        self._slack = 0.0  # the shortest time of a response: the lag is too large by up to this
        self._measured_at = 0.0

    def forget(self) -> None:
        """Drop the estimate, as the broker's clock was set; the next response gives another."""
        self._lag = None

    def now_ms(self, now: float) -> int:
        """Return the broker's time at *now*, in ms since 1970; 0 if unknown."""
        return 0 if self._lag is None else int((now - self._lag) * 1000)

    def note_response(self, broker_ms: int, requested_at: float, now: float) -> float:
        """Note a response stamped *broker_ms* that came *now*; return its maximum age."""
        lag, longest = now - broker_ms / 1000, now - requested_at
        known = self._lag
        slack = self._slack = longest if known is None else min(self._slack, longest)
        # No response is older than its request, unless a clock was set.
        age = longest if known is None else min(max(0.0, lag - known) + slack, longest)
        is_stale = now - self._measured_at > STALE_SECONDS
        if known is None or lag < known or lag - known > longest or is_stale:
            self._lag, self._measured_at = lag, now
        return age
