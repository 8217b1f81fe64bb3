"""Timestamps of brokers: milliseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)
LEAST_MILLIS: Final = 10**11  # in 1973
MILLIS_FORM: Final = "expected milliseconds since 1970 (13 digits)"


def is_millis(number: int) -> bool:
    """Return False for seconds, or a date as 20260301, in place of milliseconds since 1970."""
    return number == 0 or number >= LEAST_MILLIS


def millis_of(when: datetime) -> int:
    """Return *when*, which has a time zone, in milliseconds since 1970, rounded down.

    Exactly: ``when.timestamp() * 1000`` is a float, which can be less than the millisecond.
    """
    return (when - EPOCH) // MILLISECOND
