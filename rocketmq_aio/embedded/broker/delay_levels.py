"""Delay levels of the broker: delayed messages wait in a system topic."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rocketmq_aio.embedded.broker.store import MessageStore, NewMessage, StoredMessage
from rocketmq_aio.embedded.clock import Clock
from rocketmq_aio.model.properties import DELAY, encode_properties, parse_properties

WAITING_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
LEVELS: Final = (1, 5, 10, 30, *(MINUTE * n for n in (*range(1, 11), 20, 30)), HOUR, 2 * HOUR)


class DelayLevels:
    """Stores messages, delayed ones at the end of their delay.

    `seconds` has the delay of each level; tests can shorten them.
    """

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self.seconds: list[float] = list(LEVELS)
        self._store = store
        self._clock = clock

    def store(self, incoming: NewMessage) -> StoredMessage:
        """Store *incoming* in its topic or the delay topic; the response has that position."""
        properties = parse_properties(incoming.properties)
        level = min(int(properties.get(DELAY, "0")), len(self.seconds))
        if level <= 0:
            return self._store.append(incoming, self._clock.now_ms())
        real = {"REAL_TOPIC": incoming.topic, "REAL_QID": str(incoming.queue_id)}
        waiting = replace(
            incoming,
            topic=WAITING_TOPIC,
            queue_id=level - 1,
            properties=encode_properties(properties | real).encode(),
        )
        self._store.create_topic(WAITING_TOPIC, len(self.seconds), perm=0)
        stored = self._store.append(waiting, self._clock.now_ms())
        visible = replace(incoming, properties=encode_properties(stored.properties).encode())
        self._clock.call_later(self.seconds[level - 1], lambda: self._deliver(visible))
        return stored

    def _deliver(self, visible: NewMessage) -> None:
        self._store.append(visible, self._clock.now_ms())
