"""Delay levels: delayed messages wait in a system topic."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from rocketmq_aio.embedded.broker.delay_queue import MAX_LONG, DelayQueue
from rocketmq_aio.embedded.broker.state import ErrorResponse
from rocketmq_aio.embedded.broker.store import MessageStore, NewMessage, StoredMessage
from rocketmq_aio.model.properties import DELAY

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
LEVELS: Final = (1, 5, 10, 30, *(60 * minutes for minutes in (*range(1, 11), 20, 30, 60, 120)))


class DelayLevels:
    """Stores messages, delayed ones again at the end of their delay.

    :ivar seconds: the delay of each level; tests can shorten them
    :ivar waiting: log offsets of messages that are not due
    """

    def __init__(self, store: MessageStore) -> None:
        self.seconds: list[float] = list(LEVELS)
        self._store = store
        self.waiting = DelayQueue[int](
            store.clock, self._deliver, lambda log_offset: log_offset >= store.log_start
        )

    def store(self, message: NewMessage) -> StoredMessage:
        """Store *message* in its topic or the schedule topic; the response has that position."""
        level = min(number(message.properties, DELAY), len(self.seconds))
        if level <= 0:
            return self._store.append(message)
        self._store.create_topic(SCHEDULE_TOPIC, len(self.seconds), perm=0)
        stored = self._store.append(hidden(message, SCHEDULE_TOPIC, level - 1))
        self.waiting.add(stored.store_ms + int(self.seconds[level - 1] * 1000), stored.log_offset)
        return stored

    def _deliver(self, log_offset: int) -> None:
        stored = self._store.find(log_offset)
        if stored is not None:
            topic, queue_id = real_queue(stored)
            if self._store.queue(topic, queue_id) is not None:
                self._store.append(stored.to_new(topic, queue_id))


def hidden(message: NewMessage, topic: str, queue_id: int, **changes: object) -> NewMessage:
    """Return *message* for the system *topic*; properties keep its topic and queue."""
    real = {REAL_TOPIC: message.topic, REAL_QUEUE_ID: str(message.queue_id)}
    properties = message.properties | real
    return replace(message, topic=topic, queue_id=queue_id, properties=properties, **changes)


def real_queue(stored: StoredMessage) -> tuple[str, int]:
    """Return the topic and queue that a message in a system topic is for."""
    properties = stored.properties
    return properties[REAL_TOPIC], int(properties[REAL_QUEUE_ID])


def real_message(stored: StoredMessage) -> NewMessage:
    """Return a message in a system topic as it was sent."""
    properties = stored.properties
    topic, queue_id = real_queue(stored)
    for name in (REAL_TOPIC, REAL_QUEUE_ID):
        del properties[name]
    return stored.to_new(topic, queue_id, properties=properties)


def number(properties: Mapping[str, str], name: str) -> int:
    """Return a numeric property, 0 without it; ErrorResponse if it is no number."""
    text = properties.get(name, "0")
    with suppress(ValueError):
        if -MAX_LONG <= (value := int(text)) <= MAX_LONG:
            return value
    raise ErrorResponse(f'java.lang.NumberFormatException: For input string: "{text}"')
