"""TimerProcessor: messages with a delivery time, and recalls (5.x)."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from rocketmq_aio.embedded.broker.delay_levels import hidden, number, real_message
from rocketmq_aio.embedded.broker.delay_queue import DelayQueue
from rocketmq_aio.embedded.broker.state import ILLEGAL_OPERATION, BrokerState, ErrorResponse
from rocketmq_aio.embedded.broker.store import REGION, NewMessage, StoredMessage
from rocketmq_aio.embedded.handlers import reads
from rocketmq_aio.model.properties import DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS, UNIQ_KEY
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.requests.send import RecallMessage, RecallMessageResponse

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
MAX_DELAY_MS: Final = 3 * 24 * 3600 * 1000
PRECISION_MS: Final = 1000
MAX_RECALLED: Final = 100_000  # recalls that are remembered


class TimerProcessor:
    """Delivers messages at their times.

    :ivar waiting: log offsets of messages that are not due
    :ivar recalled: topics and keys of recalled messages that are not due
    """

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.recalled: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.waiting = DelayQueue[int](
            state.clock, self._deliver, lambda log_offset: log_offset >= state.store.log_start
        )

    def due_ms(self, properties: Mapping[str, str]) -> int | None:
        """Return the delivery time of a message with *properties*; None: immediately."""
        if not self._state.version.is_5 or number(properties, DELAY) > 0:
            return None
        now = self._state.clock.now_ms()
        if TIMER_DELAY_SEC in properties:
            due = now + number(properties, TIMER_DELAY_SEC) * 1000
        elif TIMER_DELAY_MS in properties:
            due = now + number(properties, TIMER_DELAY_MS)
        elif TIMER_DELIVER_MS in properties:
            due = number(properties, TIMER_DELIVER_MS)
        else:
            return None
        if due - now > MAX_DELAY_MS:
            remark = "timer message illegal, the delay time should not be bigger than the max delay"
            raise ErrorResponse(f"{remark} {MAX_DELAY_MS}ms", ResponseCode.MESSAGE_ILLEGAL)
        # A multiple of the precision is moved back by one step.
        return (due - 1) // PRECISION_MS * PRECISION_MS if due > now else None

    def store(self, message: NewMessage, due_ms: int) -> tuple[StoredMessage, str]:
        """Store a message until *due_ms*; return its position and its recall handle."""
        store = self._state.store
        store.create_topic(TIMER_TOPIC, 1, perm=0)
        waiting = hidden(message, TIMER_TOPIC, 0)
        waiting.properties[TIMER_OUT_MS] = str(due_ms)
        stored = store.append(waiting)
        self.waiting.add(due_ms, stored.log_offset)
        key = stored.properties[UNIQ_KEY]
        text = f"v1 {message.topic} {self._state.name} {due_ms + 1} {key}"
        return stored, urlsafe_b64encode(text.encode()).decode()

    @reads(RecallMessage, version=5)
    def recall(self, header: RecallMessage) -> object:
        if not self._state.enabled("recallMessageEnable"):
            raise ErrorResponse("recall failed, operation is forbidden", ResponseCode.NO_PERMISSION)
        self._state.topic(header.topic)
        try:
            handle = urlsafe_b64decode(header.recall_handle).decode()
            _, topic, broker, due, key = handle.split(" ")
            late = int(due) <= self._state.clock.now_ms()
        except (ValueError, binascii.Error):
            raise ErrorResponse("recall handle is invalid", ILLEGAL_OPERATION) from None
        if (topic, broker) != (header.topic, self._state.name) or late:
            raise ErrorResponse(
                "recall failed, topic, broker or timestamp invalid", ILLEGAL_OPERATION
            )
        self.recalled[topic, key] = None
        if len(self.recalled) > MAX_RECALLED:
            self.recalled.popitem(last=False)
        return RecallMessageResponse(msg_id=key, region_id=REGION)

    def _deliver(self, log_offset: int) -> None:
        store = self._state.store
        stored = store.find(log_offset)
        if stored is None:
            return
        message = real_message(stored)
        del message.properties[TIMER_OUT_MS]
        recalled = message.topic, message.properties[UNIQ_KEY]
        if recalled in self.recalled:
            del self.recalled[recalled]
        elif store.queue(message.topic, message.queue_id) is not None:
            store.append(message)
