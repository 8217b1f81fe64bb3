"""Sent-back messages of the broker: retry topics and dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rocketmq_aio.embedded.broker.delay_levels import DelayLevels
from rocketmq_aio.embedded.broker.locks import LockProcessor
from rocketmq_aio.embedded.broker.state import BrokerState, ErrorResponse, Handlers
from rocketmq_aio.embedded.broker.store import NewMessage, StoredMessage
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.names import DLQ_PREFIX, RETRY_PREFIX
from rocketmq_aio.model.properties import (
    DELAY,
    RETRY_TOPIC,
    WAIT,
    encode_properties,
    parse_properties,
)
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.record import decode_messages
from rocketmq_aio.protocol.requests.send import ConsumerSendMsgBack

GROUP_LIMIT: Final = 16  # default number of retries
FIRST_LEVEL: Final = 3


class SendBackProcessor:
    """Stores messages again, in the retry or dead-letter topic of a group."""

    def __init__(self, state: BrokerState, locks: LockProcessor, delays: DelayLevels) -> None:
        self._state = state
        self._locks = locks
        self._delays = delays

    def handlers(self) -> Handlers:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, command: Command, _connection: ServerConnection) -> Response:
        asked = read_header(command, ConsumerSendMsgBack)
        self._state.ensure_group(asked.group)
        self._state.check_group(asked.group)
        if self._state.group_setting(asked.group, "retryQueueNums") <= 0:
            return Response()  # the message is dropped
        retry_topic = self._state.make_retry_topic(asked.group)
        message, stored = self._find(asked.offset)
        limit = asked.max_reconsume_times
        limit = GROUP_LIMIT if limit is None else limit
        dead = asked.delay_level < 0 or message.reconsume_times >= limit
        if dead and asked.origin_topic is None and self._state.version.is_5:
            raise ErrorResponse(ResponseCode.SYSTEM_ERROR, "java.lang.NullPointerException: topic")
        level = asked.delay_level or FIRST_LEVEL + message.reconsume_times
        properties = {RETRY_TOPIC: message.queue.topic} | stored.properties
        properties.setdefault("ORIGIN_MESSAGE_ID", message.offset_message_id)
        properties |= {WAIT: "false", DELAY: "0" if dead else str(level)}
        again = NewMessage(
            topic=self._dead_letters(asked.group) if dead else retry_topic,
            queue_id=0,  # a real broker chooses at random
            body=stored.body,
            properties=encode_properties(properties).encode(),
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_ms=int(message.born_time.timestamp() * 1000),
            reconsume_times=message.reconsume_times + 1,
        )
        self._delays.store(again)
        return Response()

    def placed(self, sent: NewMessage, limit: int | None) -> NewMessage:
        """Return a send to a retry topic with the topic that stores it: retry or dead-letter."""
        group = sent.topic.removeprefix(RETRY_PREFIX)
        limit = GROUP_LIMIT if limit is None else limit
        if self._state.version.is_5:
            dead = sent.reconsume_times > limit or self._locks.any_in(group)
        else:
            dead = sent.reconsume_times >= limit
        if not dead:
            return sent
        properties = parse_properties(sent.properties)
        if self._state.version.is_5:  # 4.9 also delays dead letters
            properties[DELAY] = "0"
        encoded = encode_properties(properties).encode()
        return replace(sent, topic=self._dead_letters(group), queue_id=0, properties=encoded)

    def _dead_letters(self, group: str) -> str:
        self._state.store.create_topic(DLQ_PREFIX + group, 1)
        return DLQ_PREFIX + group

    def _find(self, log_offset: int) -> tuple[MessageExt, StoredMessage]:
        for queue, stored in self._everything():
            if stored.log_offset == log_offset:
                (message,), _ = decode_messages(stored.record, queue)
                return message, stored
        remark = f"look message by offset failed, {log_offset}"
        raise ErrorResponse(ResponseCode.SYSTEM_ERROR, remark)

    def _everything(self) -> Iterator[tuple[MessageQueue, StoredMessage]]:
        for name, topic in self._state.store.topics.items():
            for number, log in enumerate(topic.queues):
                for stored in log.messages:
                    yield MessageQueue(name, self._state.name, number), stored
