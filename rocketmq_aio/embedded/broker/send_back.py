"""SendBackProcessor: sent-back messages in retry topics and dead letters."""

from __future__ import annotations

from random import randrange
from typing import Final

import msgspec

from rocketmq_aio.embedded.broker.delay_levels import DelayLevels
from rocketmq_aio.embedded.broker.locks import LockProcessor
from rocketmq_aio.embedded.broker.state import BrokerState, ErrorResponse
from rocketmq_aio.embedded.broker.store import NewMessage
from rocketmq_aio.embedded.handlers import reads
from rocketmq_aio.model.names import DLQ_PREFIX, RETRY_PREFIX
from rocketmq_aio.model.properties import DELAY, RETRY_TOPIC, WAIT
from rocketmq_aio.protocol.requests.send import ConsumerSendMsgBack

FIRST_LEVEL: Final = 3


class SendBackProcessor:
    """Stores messages again, in the retry or dead-letter topic of a group."""

    def __init__(self, state: BrokerState, locks: LockProcessor, delays: DelayLevels) -> None:
        self._state = state
        self._locks = locks
        self._delays = delays

    @reads(ConsumerSendMsgBack)
    def send_back(self, header: ConsumerSendMsgBack) -> None:
        state = self._state
        state.ensure_group(header.group)
        if state.group(header.group)["retryQueueNums"] <= 0:
            return  # the message is dropped
        retry_topic = state.make_retry_topic(header.group, unit=header.unit_mode)
        stored = state.store.find(header.offset)
        if stored is None:
            raise ErrorResponse(f"look message by offset failed, {header.offset}")
        limit = self._limit(header.group, header.max_reconsume_times)
        dead = header.delay_level < 0 or stored.reconsume_times >= limit
        if dead and header.origin_topic is None and state.version.is_5:
            raise ErrorResponse("java.lang.NullPointerException: topic")
        level = header.delay_level or FIRST_LEVEL + stored.reconsume_times
        properties = {RETRY_TOPIC: stored.topic} | stored.properties
        properties.setdefault("ORIGIN_MESSAGE_ID", stored.message_id)
        properties |= {WAIT: "false", DELAY: "0" if dead else str(level)}
        topic = self._dead_letter_topic(header.group) if dead else retry_topic
        queue_id, times = randrange(len(state.topic(topic).queues)), stored.reconsume_times + 1
        self._delays.store(
            stored.to_new(topic, queue_id, properties=properties, reconsume_times=times)
        )

    def placed(self, message: NewMessage, limit: int | None) -> NewMessage:
        """Return a send to a retry topic with the topic that stores it: retry or dead-letter."""
        group = message.topic.removeprefix(RETRY_PREFIX)
        limit = self._limit(group, limit)
        if self._state.version.is_5:
            dead = message.reconsume_times > limit or self._locks.any_in(group)
        else:
            dead = message.reconsume_times >= limit
        if not dead:
            return message
        properties = message.properties
        if self._state.version.is_5:  # 4.9 also delays dead letters
            properties = properties | {DELAY: "0"}
        topic = self._dead_letter_topic(group)
        return msgspec.structs.replace(message, topic=topic, queue_id=0, properties=properties)

    def _limit(self, group: str, of_request: int | None) -> int:
        if of_request is not None:
            return of_request
        return int(self._state.group_setting(group, "retryMaxTimes"))

    def _dead_letter_topic(self, group: str) -> str:
        return self._state.store.ensure_topic(DLQ_PREFIX + group, 1)
