"""Parsers of option values: (option name for errors, text) to value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from rocketmq_aio.config.validation import bool_from
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.address import check_namesrv, is_url, parse_addresses
from rocketmq_aio.model.names import check_group, check_namespace, check_topic
from rocketmq_aio.model.timestamps import MILLIS_FORM, is_millis, millis_of
from rocketmq_aio.model.values import ExpressionType, MessageSelector
from rocketmq_aio.protocol.subscription import subscription
from rocketmq_aio.spark.offsets import EARLIEST, Offsets, Queue, StreamOffset, flattened, items_of

UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
DURATION: Final = re.compile(r"(\d{1,12})\s*(ms|s|m|min|h|d)")
MAX_COUNT: Final = 2**31 - 1
ASSIGN_FORM: Final = 'expected {"topic":{"broker-a":[0,1]}}'


def name_servers(option: str, text: str) -> str:
    """Return the addresses joined by ``;``."""
    _addresses(option, text)
    return text if is_url(text) else ";".join(parse_addresses(text))


def text(option: str, value: str) -> str:
    """Return *value*, which must not be empty."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(option, value, "empty: give it a value or leave it out")
    return value


def flag(option: str, value: str) -> bool:
    """Return the boolean of ``true`` or ``false``."""
    return bool_from(option, value.strip())


def count(least: int, most: int = MAX_COUNT) -> Callable[[str, str], int]:
    """Return a parser of whole numbers from *least* to *most*."""

    def read(option: str, value: str) -> int:
        number = value.strip()
        is_number = number.isascii() and number.isdigit() and len(number) <= len(str(most))
        if not is_number or not least <= int(number) <= most:
            raise ConfigError(option, value, f"expected a whole number from {least} to {most}")
        return int(number)

    return read


def choice(*allowed: str) -> Callable[[str, str], str]:
    """Return a case-insensitive parser of the *allowed* words."""
    by_lower = {each.lower(): each for each in allowed}

    def read(option: str, value: str) -> str:
        if value.strip().lower() not in by_lower:
            raise ConfigError(option, value, f"expected {' or '.join(allowed)}")
        return by_lower[value.strip().lower()]

    return read


def duration(option: str, value: str) -> float:
    """Return ``15m``, ``30s`` or ``500ms`` in seconds."""
    found = DURATION.fullmatch(value.strip().lower())
    if found is None:
        raise ConfigError(option, value, "expected a time such as 15m, 30s or 500ms")
    return int(found[1]) * UNITS[found[2]]


def _checked(check: Callable[[str], object]) -> Callable[[str, str], str]:
    """Return a parser of texts that pass *check*, whose errors get the name of the option."""

    def read(option: str, value: str) -> str:
        try:
            check(value)
        except ConfigError as error:
            raise ConfigError(option, value, error.reason) from None
        return value

    return read


group, namespace = _checked(check_group), _checked(check_namespace)
_topic, _addresses = _checked(check_topic), _checked(check_namesrv)


def topic(option: str, value: str) -> str:
    """Return a valid topic name."""
    return _topic(option, value.strip())


def topics(option: str, value: str) -> tuple[str, ...]:
    """Return the distinct topics of a comma-separated list."""
    names = [each for each in value.split(",") if each.strip()]
    if not names:
        raise ConfigError(option, value, "expected topics, separated by commas")
    return tuple(dict.fromkeys(topic(option, name) for name in names))


def pattern(option: str, value: str) -> str:
    """Return a valid regular expression."""
    try:
        re.compile(text(option, value))
    except re.error as error:
        raise ConfigError(option, value, f"not a regular expression of Python: {error}") from None
    return value


def check_expression(expression: str, kind: ExpressionType) -> None:
    """Raise `ConfigError` if a filter names no tag or cannot be sent."""
    try:
        subscription("", MessageSelector(expression, kind), 0)
    except ConfigError as error:
        raise ConfigError("subExpression", expression, error.reason) from None
    if kind == "SQL92" and expression.strip() in ("", "*"):
        reason = "not an SQL condition: give one, or leave expressionType out"
        raise ConfigError("subExpression", expression, reason)


def queues(option: str, value: str) -> tuple[Queue, ...]:
    """Return the queues of ``{"topic":{"broker-a":[0,1]}}``, sorted."""
    found: set[Queue] = set()
    for name, brokers in items_of(option, _json(option, value, ASSIGN_FORM), ASSIGN_FORM):
        for broker, ids in items_of(option, brokers, ASSIGN_FORM):
            if not isinstance(ids, list) or not all(type(n) is int and n >= 0 for n in ids):
                raise ConfigError(option, value, ASSIGN_FORM)
            found.update((topic(option, name), broker, queue_id) for queue_id in ids)
    if not found:
        raise ConfigError(option, value, f"names no queue: {ASSIGN_FORM}")
    return tuple(sorted(found))


def offsets(*words: str) -> Callable[[str, str], str | Offsets]:
    """Return a parser of one of *words*, or of offsets as JSON."""
    read_start = start(*words)

    def read(option: str, value: str) -> str | Offsets:
        found = read_start(option, value)
        return found.end if isinstance(found, StreamOffset) else found

    return read


def start(*words: str) -> Callable[[str, str], str | Offsets | StreamOffset]:
    """Return a parser of one of *words*, of offsets as JSON, or of a line of a checkpoint."""
    form = f"expected {' or '.join(words)} or offsets as JSON"

    def read(option: str, value: str) -> str | Offsets | StreamOffset:
        if value.strip().lower() in words:
            return value.strip().lower()
        given = _json(option, value, form)
        if given.get("v") != 1 or "end" not in given:
            return flattened(option, given, EARLIEST)
        end = flattened(option, given["end"], EARLIEST)
        return replace(StreamOffset.from_json({**given, "end": {}}), end=end)

    return read


def instant(option: str, value: str) -> int:
    """Return a number, or an ISO 8601 time with zone, as milliseconds since 1970."""
    plain = value.strip()
    if plain.isascii() and plain.isdigit() and len(plain) <= 15 and is_millis(int(plain)):
        return int(plain)
    try:
        when = datetime.fromisoformat(plain)
    except ValueError:
        when = datetime.min
    if when.tzinfo is None:
        reason = f"{MILLIS_FORM}, or a time with zone as 2026-01-31T08:00:00Z"
        raise ConfigError(option, value, reason)
    return millis_of(when)


def instants(option: str, value: str) -> Offsets:
    """Return milliseconds since 1970 by queue."""
    found = flattened(option, _json(option, value, 'expected {"topic":{"broker-a":{"0":ms}}}'))
    for millis in found.values():
        if not is_millis(millis):
            raise ConfigError(option, millis, MILLIS_FORM)
    return found


def _json(option: str, value: str, form: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ConfigError(option, value, f"not JSON ({error}): {form}") from None
    if not isinstance(found, dict):
        raise ConfigError(option, value, form)
    return found
