"""Redelivery: sends failed messages back to a broker, to be retried or dead-lettered."""

from __future__ import annotations

import random
import re
from functools import cached_property
from time import time_ns
from typing import Final

import msgspec

from rocketmq_aio.errors import ConfigError, RocketMQError, RouteNotFoundError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.instance.routes import TEMPLATE_TOPIC
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.message import MAX_DELAY_LEVEL, MessageExt
from rocketmq_aio.model.names import RETRY_PREFIX, popped_topic_pattern
from rocketmq_aio.model.properties import (
    DELAY,
    LIGHT,
    LMQ_NAMES,
    LMQ_OFFSETS,
    RETRY_TOPIC,
    encode_properties,
    parse_properties,
)
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import (
    COMPRESSED,
    COMPRESSION_BITS,
    COMPRESSION_MASK,
    INNER_BATCH,
    ResponseCode,
)
from rocketmq_aio.protocol.compression import compress
from rocketmq_aio.protocol.header import RequestHeader
from rocketmq_aio.protocol.namespaces import Namespace
from rocketmq_aio.protocol.receipt import retry_topics
from rocketmq_aio.protocol.requests.send import ConsumerSendMsgBack, SendMessage
from rocketmq_aio.protocol.static_topics import is_logical

logger = get_logger(__name__)

DEAD_LETTER: Final = -1  # as a delay level
FIRST_LEVEL: Final = 3  # of the first retry; each further one is a level higher
# What the brokers' delay levels 1 to 18 mean unless they are configured otherwise.
LEVEL_SECONDS: Final = (
    *(1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200),
)
MAX_RECONSUME_TIMES: Final = 16  # unless the settings have another number
COPY_ATTEMPTS: Final = 3  # brokers to try
INNER_GROUP: Final = "CLIENT_INNER_PRODUCER"  # of such sends, as in the Java client
ANY_QUEUE: Final = -1
COMPRESSION_LEVEL: Final = 5
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
# They would delay the copy again, make it a half message, or put it into light queues again.
NOT_COPIED: Final = LIGHT | {
    *(DELAY, "TRAN_MSG", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", LMQ_OFFSETS)
}
_LIGHT_NAMES: Final = LMQ_NAMES.encode()
STORED: Final = (
    *(ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT),
    *(ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE),
)


def check_delay_level(level: object) -> None:
    """Validate the delay level of a retry: -1 is the dead-letter topic, 0 lets the broker choose.

    :raises ConfigError: it is not a whole number from -1 on
    """
    if type(level) is not int or not DEAD_LETTER <= level <= MAX_DELAY_LEVEL:
        raise ConfigError("delay_level", level, f"expected -1 to {MAX_DELAY_LEVEL}")


def is_light(message: MessageExt) -> bool:
    """Whether a broker that stores *message* again puts it into light message queues again.

    All versions do so with dead letters, 4.9 also with retries: it would fail there again.
    """
    return _LIGHT_NAMES in message.raw_properties


class RetryTopics:
    """Names of the retry topics of a group, and the topics that their messages come from.

    Brokers from 5.0 store a popped message for a retry in a topic of its group and its topic, both
    with the namespace.
    """

    def __init__(self, group: str, namespace: Namespace | None) -> None:
        self.name: Final = RETRY_PREFIX + group
        self._group = group
        self._namespace = namespace

    @cached_property
    def _popped(self) -> re.Pattern[str]:
        return re.compile(popped_topic_pattern(self._group))  # expensive, and rarely needed

    def of_popped(self, topic: str) -> list[str]:
        """Return the names for popped messages of *topic*, which is not a retry topic."""
        namespace = self._namespace
        stored = topic if namespace is None else namespace.outer(topic)
        return [*retry_topics(self._group, stored).values()]

    def restore_topic(self, message: MessageExt) -> None:
        """Set the original topic of a message from a retry topic; its queue stays."""
        if not message.queue.topic.startswith(RETRY_PREFIX):
            return
        topic = message.property(RETRY_TOPIC) or message.topic
        # Also of a message that was pulled from there, and sent back.
        if (popped := self._popped.match(topic)) is not None:
            topic = popped[1] if self._namespace is None else self._namespace.inner(popped[1])
        message.topic = topic


class SendBack:
    """Sends failed messages of *group* back to brokers, unchanged.

    The broker that stored a message stores it again.  If it cannot, a copy is sent to the retry
    topic at any broker: a message may be delivered twice rather than lost.

    :param max_reconsume_times: retries before a message goes to the dead-letter topic
    """

    def __init__(self, instance: MQClientInstance, group: str, *, max_reconsume_times: int) -> None:
        self._instance = instance
        self._group = group
        self._retry_topic = RETRY_PREFIX + group
        self._max_reconsume_times = max_reconsume_times

    async def send_back(self, message: MessageExt, delay_level: int = 0) -> None:
        """Return when *message* is stored for a retry.

        :param delay_level: of the broker's table, by default 1 to 18; 0: increasing, from level 3;
            -1: no retry, to the dead-letter topic
        :raises RocketMQError: no broker stored it: keep the message and try again
        """
        if not await self.can_restore(message):
            await self._send_copy(message, delay_level)
            return
        try:
            await self._request_restore(message, delay_level)
        except RocketMQError as error:
            logger.warning("send_back_failed", **_named(message), reason=str(error))
            await self._send_copy(message, delay_level)

    async def dead_letter(self, message: MessageExt, reason: str) -> None:
        """Return when *message* is in ``%DLQ%<group>``; raises as `send_back`."""
        await self.send_back(message, DEAD_LETTER)
        logger.warning("message_dead", group=self._group, **_named(message), reason=reason)

    async def can_restore(self, message: MessageExt) -> bool:
        """Whether the broker of *message* would store exactly this message.

        :raises NameServerUnavailableError: the route of the retry topic is unknown
        """
        if message.local_retries or is_logical(message.queue):
            return False  # the stored message lacks local retries, or may be at another broker
        if message.sys_flag & INNER_BATCH:
            return False  # the whole batch would be redelivered
        if is_light(message):
            return False
        broker = message.queue.broker_name
        try:
            route = await self._instance.routes.get(self._retry_topic)
        except RouteNotFoundError:
            return True  # it creates the topic on request
        # A broker without a retry queue of the group confirms, and drops the message.
        has_queue = any(queue.broker_name == broker for queue in route.publish_queues)
        return has_queue or not route.lists(broker)

    async def _request_restore(self, message: MessageExt, delay_level: int) -> None:
        header = ConsumerSendMsgBack(
            offset=message.commit_log_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.offset_message_id,
            origin_topic=message.queue.topic,
            max_reconsume_times=self._max_reconsume_times,
            unit_mode=self._instance.config.unit_mode,
            broker_name=message.queue.broker_name,
        )
        await self._store(message.queue, header, b"")

    async def _send_copy(self, message: MessageExt, delay_level: int) -> None:
        dead = delay_level < 0 or message.reconsume_times >= self._max_reconsume_times
        level = delay_level or FIRST_LEVEL + message.reconsume_times
        header, body = copy_of(message, self._retry_topic, None if dead else level)
        failure: RocketMQError = RouteNotFoundError(
            self._retry_topic, "no broker has a queue for retries of this group (retryQueueNums)"
        )
        for broker in (await self._brokers(message))[:COPY_ATTEMPTS]:
            addressed = msgspec.structs.replace(
                header, broker_name=broker, unit_mode=self._instance.config.unit_mode
            )
            queue = MessageQueue(self._retry_topic, broker, ANY_QUEUE)
            try:
                await self._store(queue, addressed, body)
                return
            except RocketMQError as error:
                logger.warning("retry_not_sent", **_named(message), broker=broker)
                failure = error
        raise failure

    async def _brokers(self, message: MessageExt) -> list[str]:
        """Return brokers that can store a copy; the one that failed comes last."""
        routes = self._instance.routes
        origin = routes.broker_of(message.queue)
        try:
            route = await routes.get(self._retry_topic)
        except RocketMQError:
            return [origin]
        writable = {queue.broker_name for queue in route.publish_queues}
        if not route.lists(origin) and routes.master(origin) is not None:
            writable.add(origin)
        return sorted(writable, key=lambda broker: (broker == origin, random.random()))

    async def _store(self, queue: MessageQueue, header: RequestHeader, body: bytes) -> None:
        address = self._instance.routes.master_of(queue)
        await self._instance.remoting.request_checked(address, header, body, accept=STORED)


def copy_of(message: MessageExt, retry_topic: str, level: int | None) -> tuple[SendMessage, bytes]:
    """Return header and body of a send with the effect of sending *message* back.

    :param level: delay level; None for the dead-letter topic
    """
    properties = _properties(message)
    if level is not None:
        properties[DELAY] = str(level)
    times = message.reconsume_times
    body, sys_flag = _body(message)
    header = SendMessage(
        producer_group=INNER_GROUP,
        topic=retry_topic,
        default_topic=TEMPLATE_TOPIC,
        default_topic_queue_nums=1,
        queue_id=ANY_QUEUE,
        sys_flag=sys_flag,
        born_timestamp=time_ns() // 1_000_000,
        flag=message.flag,
        properties=encode_properties(properties),
        reconsume_times=times + 1,
        unit_mode=False,
        # The limit selects retry or dead letter: releases differ about equal numbers.
        max_reconsume_times=times if level is None else times + 2,
        batch=False,
    )
    return header, body


def _properties(message: MessageExt) -> dict[str, str]:
    # As stored: a handler may have changed the properties.
    stored = parse_properties(message.raw_properties)
    kept = {name: value for name, value in stored.items() if name not in NOT_COPIED}
    kept.setdefault(RETRY_TOPIC, message.queue.topic)
    kept.setdefault(ORIGIN_MESSAGE_ID, message.offset_message_id)
    return kept


def _body(message: MessageExt) -> tuple[bytes, int]:
    """Return the body as stored: decompressed it may be too large for the broker."""
    bits = message.sys_flag
    if not bits & COMPRESSED or bits & INNER_BATCH:
        return message.body, 0
    kinds = {value: name for name, value in COMPRESSION_BITS.items()}
    packed = compress(message.body, kinds.get(bits & COMPRESSION_MASK, "zlib"), COMPRESSION_LEVEL)
    return packed, bits & (COMPRESSED | COMPRESSION_MASK)


def _named(message: MessageExt) -> dict[str, object]:
    return {"queue": str(message.queue), "offset": message.queue_offset, "id": message.message_id}
