"""Timer messages and recalls on the broker (5.x)."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from rocketmq_aio.embedded.broker.state import BrokerState, ErrorResponse, Handlers
from rocketmq_aio.embedded.broker.store import REGION, NewMessage, StoredMessage
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.model.properties import (
    DELAY,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    encode_properties,
    parse_properties,
)
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header, to_ext_fields
from rocketmq_aio.protocol.requests.send import RecallMessage, RecallMessageResponse

WHEEL_TOPIC: Final = "rmq_sys_wheel_timer"
MAX_DELAY_MS: Final = 3 * 24 * 3600 * 1000
PRECISION_MS: Final = 1000
ILLEGAL_OPERATION: Final = 604


class TimerProcessor:
    """Delivers messages at their times.

    `delay_divisor` divides all delays, to shorten tests.
    """

    def __init__(self, state: BrokerState) -> None:
        self.recall_enabled = False
        self.delay_divisor = 1.0
        self._state = state
        self._recalled: set[tuple[str, str]] = set()

    def handlers(self) -> Handlers:
        return {RequestCode.RECALL_MESSAGE: self.recall} if self._state.version.is_5 else {}

    def due_ms(self, properties: Mapping[str, str]) -> int | None:
        """Return the delivery time of a message with *properties*; None: immediately."""
        if not self._state.version.is_5 or int(properties.get(DELAY, "0")) > 0:
            return None
        if TIMER_DELAY_MS in properties:
            due = self._state.clock.now_ms() + int(properties[TIMER_DELAY_MS])
        elif TIMER_DELIVER_MS in properties:
            due = int(properties[TIMER_DELIVER_MS])
        else:
            return None
        if due - self._state.clock.now_ms() > MAX_DELAY_MS:
            remark = "timer message illegal, the delay time should not be bigger than the max delay"
            raise ErrorResponse(ResponseCode.MESSAGE_ILLEGAL, f"{remark} {MAX_DELAY_MS}ms")
        # A multiple of the precision is moved back by one step.
        return (
            (due - 1) // PRECISION_MS * PRECISION_MS if due > self._state.clock.now_ms() else None
        )

    def hold(self, incoming: NewMessage, due_ms: int) -> tuple[StoredMessage, str]:
        """Store a message until *due_ms*; return its position and its recall handle."""
        self._state.store.create_topic(WHEEL_TOPIC, 1, perm=0)
        real = {"REAL_TOPIC": incoming.topic, "REAL_QID": str(incoming.queue_id)}
        real["TIMER_OUT_MS"] = str(due_ms)
        properties = encode_properties(parse_properties(incoming.properties) | real).encode()
        waiting = replace(incoming, topic=WHEEL_TOPIC, queue_id=0, properties=properties)
        stored = self._state.store.append(waiting, self._state.clock.now_ms())
        key = stored.properties[UNIQ_KEY]
        seconds = max(0, due_ms - self._state.clock.now_ms()) / 1000 / self.delay_divisor
        self._state.clock.call_later(seconds, lambda: self._deliver(incoming, key))
        text = f"v1 {incoming.topic} {self._state.name} {due_ms + 1} {key}"
        return stored, urlsafe_b64encode(text.encode()).decode()

    def recall(self, command: Command, _connection: ServerConnection) -> Response:
        asked = read_header(command, RecallMessage)
        if not self._state.enabled("recallMessageEnable", self.recall_enabled):
            raise ErrorResponse(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        self._state.topic(asked.topic)
        try:
            handle = urlsafe_b64decode(asked.recall_handle).decode()
            _, topic, broker, due, key = handle.split(" ")
        except (ValueError, binascii.Error):
            raise ErrorResponse(ILLEGAL_OPERATION, "recall handle is invalid") from None
        if (topic, broker) != (asked.topic, self._state.name) or int(
            due
        ) <= self._state.clock.now_ms():
            raise ErrorResponse(
                ILLEGAL_OPERATION, "recall failed, topic, broker or timestamp invalid"
            )
        self._recalled.add((topic, key))
        answer = RecallMessageResponse(msg_id=key, region_id=REGION)
        return Response(ext=to_ext_fields(answer))

    def _deliver(self, incoming: NewMessage, key: str) -> None:
        if (incoming.topic, key) not in self._recalled:
            self._state.store.append(incoming, self._state.clock.now_ms())


def with_handle(answer: Response, handle: str) -> Response:
    """Return the response to a send with its recall handle."""
    return replace(answer, ext={**answer.ext, "recallHandle": handle})
