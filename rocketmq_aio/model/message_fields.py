"""Validation of the fields of a `Message`."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Final

from rocketmq_aio.model.errors import InvalidMessageError
from rocketmq_aio.model.names import UNSENDABLE_TOPICS, topic_fault
from rocketmq_aio.model.properties import DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS

MAX_DELAY_LEVEL: Final = 18  # 1s 5s 10s 30s 1m .. 10m 20m 30m 1h 2h in the broker's default
MAX_DELAY_SECONDS: Final = 10.0**12  # brokers allow far less; fits 64-bit milliseconds
MAX_FLAG: Final = 0x7FFF_FFFF
MAX_CHECKED_TOPICS: Final = 10_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

checked_topics: set[str] = set()  # valid ones: each is validated once, not per message


def checked_topic(topic: object) -> str:
    """Return *topic* as a plain `str`: a member of a string enum is formatted by its name."""
    if (fault := topic_fault(topic)) is not None:
        raise InvalidMessageError(topic, fault)
    assert isinstance(topic, str)
    if topic in UNSENDABLE_TOPICS:
        raise InvalidMessageError(topic, "this topic is reserved by the broker")
    plain = str.__str__(topic)
    if len(checked_topics) < MAX_CHECKED_TOPICS:
        checked_topics.add(plain)
    return plain


def as_bytes(topic: str, body: object) -> bytes:
    """Return *body* as bytes."""
    if not isinstance(body, bytes | bytearray | memoryview):
        kind = type(body).__name__
        raise InvalidMessageError(topic, f"the body is {kind}, expected bytes (encode text first)")
    return bytes(body)


def checked_tag(topic: str, tag: object) -> str:
    """Return *tag*, a single tag."""
    if not isinstance(tag, str) or not tag.strip():
        raise InvalidMessageError(topic, f"tags={tag!r}: expected one non-empty string")
    if "|" in tag:
        raise InvalidMessageError(topic, f"tags={tag!r}: a message has one tag, without a bar")
    return str.__str__(tag)


def checked_flag(topic: str, flag: object) -> int:
    """Return *flag*, a signed 32-bit number."""
    if type(flag) is not int or not -MAX_FLAG - 1 <= flag <= MAX_FLAG:
        raise InvalidMessageError(topic, f"flag={flag!r}: a signed 32-bit number is expected")
    return flag


def checked_sharding_key(topic: str, key: object) -> str:
    """Return *key*; `check_encoded` checks it for separators."""
    if not isinstance(key, str) or not key.strip():
        raise InvalidMessageError(topic, f"sharding_key={key!r}: expected a non-empty string")
    return str.__str__(key)


def delivery_time(
    topic: str, delay_level: object, delay_seconds: object, deliver_at: object
) -> tuple[str, str] | None:
    """Return the property of the delivery time as (name, value); None: no delay.

    :raises InvalidMessageError: more than one argument is given, or an invalid one
    """
    given = [delay_level != 0, delay_seconds is not None, deliver_at is not None]
    if sum(given) > 1:
        reason = "give one of delay_level, delay_seconds and deliver_at"
        raise InvalidMessageError(topic, reason)
    if deliver_at is not None:
        return TIMER_DELIVER_MS, _millis_of(topic, deliver_at)
    if delay_seconds is not None:
        millis = _millis_in(topic, delay_seconds)
        return (TIMER_DELAY_MS, str(millis)) if millis else None
    return DELAY, _checked_delay_level(topic, delay_level)


def _checked_delay_level(topic: str, level: object) -> str:
    if type(level) is not int or not 0 < level <= MAX_DELAY_LEVEL:
        reason = f"delay_level={level!r}: expected 1 to {MAX_DELAY_LEVEL} (0 = now)"
        raise InvalidMessageError(topic, reason)
    return str(level)


def _millis_in(topic: str, seconds: object) -> int:
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 <= seconds <= MAX_DELAY_SECONDS:  # type: ignore[operator]
        reason = f"delay_seconds={seconds!r}: expected a number of seconds (0 = now)"
        raise InvalidMessageError(topic, reason)
    return math.ceil(seconds * 1000)  # type: ignore[operator]


def _millis_of(topic: str, when: object) -> str:
    if not isinstance(when, datetime) or when.tzinfo is None:
        reason = f"deliver_at={when!r}: expected a datetime with a time zone"
        raise InvalidMessageError(topic, reason)
    return str(max(0, (when - EPOCH) // timedelta(milliseconds=1)))
