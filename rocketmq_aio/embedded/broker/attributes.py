"""Attributes of topics and groups (5.x): their names and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rocketmq_aio.embedded.broker.state import ErrorResponse
from rocketmq_aio.protocol.receipt import LONG

FIXED: Final = frozenset({"queue.type", "cleanup.policy"})  # set when a topic is created
FLAG: Final = frozenset({"true", "false"})
ANY_LONG: Final = range(-1, 2**63)
TYPES: Final = "UNSPECIFIED MIXED TRANSACTION PRIORITY FIFO DELAY LITE NORMAL".split()
# Possible values by name; None: any text.
Attributes = Mapping[str, frozenset[str] | range | None]
OF_TOPICS: Final[Attributes] = {
    "queue.type": frozenset({"BatchCQ", "SimpleCQ"}),
    "cleanup.policy": frozenset({"DELETE", "COMPACTION"}),
    "message.type": frozenset(TYPES),
    "reserve.time": ANY_LONG,
    "lite.topic.expiration": range(-1, 30 * 24 * 60 + 1),  # minutes
}
OF_GROUPS: Final[Attributes] = {
    "priority.factor": range(101),
    "lite.bind.topic": None,
    "lite.sub.model": frozenset({"Shared", "Exclusive"}),
    "lite.sub.reset.offset.exclusive": FLAG,
    "lite.sub.reset.offset.unsubscribe": FLAG,
    "lite.sub.client.quota": ANY_LONG,
    "lite.sub.client.max.event.cnt": range(10, 2**63),
    "lite.sub.wildcard": None,
}


def changed_attributes(
    known: Attributes, before: Mapping[str, str] | None, signed: Mapping[str, str]
) -> dict[str, str]:
    """Return attributes after changes ``+name`` and ``-name``.

    :param before: None: the topic or group is new
    :raises ErrorResponse: a change that brokers reject
    """
    attributes = dict(before or {})
    for text, value in signed.items():
        name = text[1:]
        if name not in known:
            raise ErrorResponse(f"unsupported key: {name}")
        if before is not None and name in FIXED:
            raise ErrorResponse(f"attempt to update an unchangeable attribute. key: {name}")
        if text.startswith("+"):
            _check_value(known[name], value)
            attributes[name] = value
        elif name not in attributes:
            raise ErrorResponse(f"attempt to delete a nonexistent key: {name}")
        else:
            del attributes[name]
    return attributes


def _check_value(possible: frozenset[str] | range | None, value: str) -> None:
    if isinstance(possible, range):
        if not LONG.fullmatch(value):
            raise ErrorResponse(f'java.lang.NumberFormatException: For input string: "{value}"')
        if int(value) not in possible:
            raise ErrorResponse(f"value is not in range({possible[0]}, {possible[-1]})")
    elif possible is not None and value not in possible:
        raise ErrorResponse(f"value is not in set: [{', '.join(sorted(possible))}]")
