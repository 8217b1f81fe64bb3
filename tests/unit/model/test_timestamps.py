"""Timestamps in milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given, strategies as st

from rocketmq_aio.model.timestamps import EPOCH, MILLISECOND, millis_of

MILLIS = st.integers(millis_of(datetime.min.replace(tzinfo=UTC)), 253_402_300_799_999)
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(MILLIS, st.integers(0, 999))
def test_a_time_within_a_millisecond_is_that_millisecond(millis: int, microseconds: int) -> None:
    when = EPOCH + millis * MILLISECOND + timedelta(microseconds=microseconds)

    assert millis_of(when) == millis


@given(st.datetimes(datetime(1970, 1, 3), datetime(2200, 1, 1), timezones=ZONES))
def test_a_time_zone_changes_nothing(when: datetime) -> None:
    assert millis_of(when) == millis_of(when.astimezone(UTC))
