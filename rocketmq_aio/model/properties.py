"""Message properties: names and wire form.

The wire form repeats ``name 0x01 value 0x02``; brokers before 5.2 omit the last separator.  The
last duplicate wins.  Pairs without a value are dropped, as in Java.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from rocketmq_aio.model.errors import InvalidMessageError, repr_of

NAME_END: Final = "\x01"
PAIR_END: Final = "\x02"
MAX_PROPERTIES: Final = 32_767  # bytes as stored; the broker adds a few properties
MAX_PRIORITY: Final = 0x7FFF_FFFF
PRIORITY_DIGITS: Final = len(str(MAX_PRIORITY))

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
SHARDING_KEY: Final = "__SHARDINGKEY"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
CLUSTER: Final = "CLUSTER"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
MSG_TYPE: Final = "MSG_TYPE"
UNIQ_KEY: Final = "UNIQ_KEY"
PRODUCER_GROUP: Final = "PGROUP"  # the producer group of a half message
RETRY_TOPIC: Final = "RETRY_TOPIC"
INNER_NUM: Final = "INNER_NUM"
LMQ_NAMES: Final = "INNER_MULTI_DISPATCH"  # the light message queues of a message, by commas
# Brokers make a folder of each; a name without the prefix before another one stops 5.5.0.
LMQ_LIST: Final = re.compile(r"^%LMQ%[^/,]+(,%LMQ%[^/,]+)*$")
LITE_TOPIC: Final = "__LITE_TOPIC"  # its lite topic, a light message queue of 5.5
LMQ_OFFSETS: Final = "INNER_MULTI_QUEUE_OFFSET"  # its offset in each of them; set by the broker

# Brokers put single messages with these into light message queues: none of a batch, and a half
# message before its commit.
LIGHT: Final = frozenset({LMQ_NAMES, LITE_TOPIC})

RESERVED: Final = frozenset(
    """TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP
    MIN_OFFSET MAX_OFFSET ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG
    RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET
    1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO INSTANCE_ID CORRELATION_ID
    REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET
    TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS
    TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __SHARDINGKEY __BORNHOST
    BORN_TIMESTAMP DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID _SYS_MSG_PRIORITY_ __CRC32#
    __transactionId__ TRANSACTION_CHECK_TIMES TRANS_OFFSET ORIGIN_GROUP TIMER_ROLL_LABEL
    E_T""".split()
)
# Names that `take_properties` checks further; the compiled core leaves messages with them to it.
CHECKED: Final = RESERVED | {LMQ_NAMES}


def encode_properties(properties: Mapping[str, str]) -> str:
    """Return the wire form of *properties*, which must not contain separators."""
    # Joined, not formatted: a member of a string enum is formatted by its name.
    return "\x02".join(map("\x01".join, properties.items())) + "\x02" if properties else ""


def check_encoded(topic: str, encoded: str, pairs: int) -> None:
    """Check that *encoded* has *pairs* pairs and is valid Unicode."""
    if not encoded.count("\x01") == encoded.count("\x02") == pairs:
        raise InvalidMessageError(topic, "properties, keys and tags may not hold U+0001, U+0002")
    try:
        encoded.encode()
    except UnicodeError:
        reason = "properties, keys and tags may not hold half a surrogate pair"
        raise InvalidMessageError(topic, reason) from None


def take_properties(topic: str, properties: Mapping[str, str], named: dict[str, str]) -> str:
    """Copy the user's *properties* to *named* and return their wire form.

    Use `check_encoded` on the result: separators are not checked here.
    """
    encoded, strip = "", str.strip  # raises TypeError for a name that is not a string
    try:
        for name, value in properties.items():
            if name in CHECKED or not strip(name) or not value:
                _check_property(topic, name, value)
            named[name] = value
            # Not an f-string, which formats a member of a string enum by its name.
            encoded += name + NAME_END + value + PAIR_END
    except (TypeError, AttributeError):
        raise InvalidMessageError(topic, _not_strings(properties)) from None
    return encoded


def _not_strings(properties: object) -> str:
    """Return what is wrong with *properties*, without their values, which may be secret."""
    if isinstance(properties, Mapping):
        for name, value in properties.items():
            if not (isinstance(name, str) and isinstance(value, str)):
                kind = type(value).__name__
                return f"property {repr_of(name)}: the value is {kind}, expected two strings"
    return f"properties are {type(properties).__name__}, expected a mapping of strings to strings"


def user_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return those of *properties* that `take_properties` accepts."""
    return {
        name: value for name, value in properties.items() if name not in RESERVED and name.strip()
    }


def _check_property(topic: str, name: str, value: str) -> None:
    if name in RESERVED:
        reason = "belongs to the system: use arguments such as keys= and tags=; to forward a "
        reason += "received message, give properties=received.user_properties"
        raise InvalidMessageError(topic, f"property name {repr_of(name)} {reason}")
    if not isinstance(value, str):
        raise TypeError
    if not name.strip() or not value:
        reason = f"property {repr_of(name)} has a blank name, or an empty value (brokers drop such)"
        raise InvalidMessageError(topic, reason)
    queues = value.split(",")  # only LMQ_NAMES is left; 5.5.0 counts a name that is there twice
    if not LMQ_LIST.match(value) or len(set(queues)) < len(queues):
        reason = f"property {name!r}: different names of light message queues begin with %LMQ% "
        raise InvalidMessageError(topic, f"{reason}and hold no slash: {repr_of(value)}")


def join_keys(topic: str, keys: object) -> str:
    """Return *keys*, one or any number, separated by spaces."""
    if type(keys) is str and " " not in keys and keys.strip():
        return keys
    given: list[object] = [keys]
    if isinstance(keys, Iterable) and not isinstance(keys, str):
        given = list(keys)
    good = [key for key in given if isinstance(key, str) and key.strip()]
    if len(good) != len(given):
        raise InvalidMessageError(
            topic, f"keys={repr_of(keys)}: expected a string, or several strings"
        )
    if any(" " in key for key in good):
        reason = f"keys={repr_of(keys)}: a key holds no space; give several keys as a list"
        raise InvalidMessageError(topic, reason)
    return " ".join(good)


def split_keys(joined: str) -> tuple[str, ...]:
    # As in the broker only a space separates keys; other white space is part of a key.
    return tuple([key for key in joined.split(" ") if key])


def parse_properties(raw: bytes) -> dict[str, str]:
    """Parse the wire form leniently: drop what is not a pair, replace invalid UTF-8."""
    parsed: dict[str, str] = {}
    # The most expensive step of consuming; partition in a loop is the fastest in pure Python.
    for pair in raw.decode("utf-8", "replace").split(PAIR_END):
        name, found, value = pair.partition(NAME_END)
        if found and name and value:
            parsed[name] = value
    return parsed


def read_priority(text: str | None) -> int | None:
    """Return the priority in the property *text*; None if it is none, as brokers read it."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > PRIORITY_DIGITS:
        return None
    number = int(text)
    return number if number <= MAX_PRIORITY else None


def find_property(raw: bytes, name: bytes) -> str | None:
    """Return one property of the wire form without building a dict; the last duplicate wins.

    *name* includes its separator: ``b"TAGS\\x01"``.
    """
    at = raw.rfind(b"\x02" + name)
    if at >= 0:
        start = at + 1 + len(name)
    elif raw.startswith(name):
        start = len(name)
    else:
        return None
    end = raw.find(b"\x02", start)
    value = (raw[start:end] if end >= 0 else raw[start:]).decode("utf-8", "replace")
    # A pair without a value is ignored: an earlier duplicate may have one.
    return value or parse_properties(raw).get(name[:-1].decode("utf-8", "replace"))
