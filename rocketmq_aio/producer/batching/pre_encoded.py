"""Sends of what the caller has encoded: message ids of his own, batches laid out by him."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic, time_ns
from typing import Final

import msgspec

from rocketmq_aio.errors import InvalidMessageError
from rocketmq_aio.model.names import RETRY_PREFIX, check_topic
from rocketmq_aio.model.values import MessageQueue, SendResult
from rocketmq_aio.producer.batching.batched_sends import TogetherSender
from rocketmq_aio.producer.careful import ANY_QUEUE, Routing, checked_key
from rocketmq_aio.producer.send_request import SendRequest
from rocketmq_aio.producer.topic_publish_info import TopicPublishInfo

BATCH_PROPERTIES: Final = b"WAIT\x01true\x02"


class Encoded(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A message, or a batch of them, as it goes over the wire; nothing in it is checked.

    :ivar body: of a message; of a batch its entries, one after another, as `encode_batch_entry`
        lays them out
    :ivar message_id: that of the (first) message: results and errors name it
    :ivar properties: in wire form; those of a single message, or of an entry, hold its
        ``UNIQ_KEY``, by which tools find it
    :ivar timed: the properties hold a delivery time, which brokers before 5.0 do not know
    """

    topic: str
    body: bytes
    message_id: str
    properties: bytes = BATCH_PROPERTIES
    flag: int = 0
    batch: bool = False
    timed: bool = False


class EncodedSender(TogetherSender):
    """Base of producers: what was encoded elsewhere."""

    async def send_encoded(
        self,
        encoded: Encoded,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        timeout_seconds: float | None = None,
    ) -> SendResult:
        """Send *encoded* as it is and return where it, or its first message, was stored.

        Sends of one *sharding_key* go to its queue, but do not wait for each other: await one
        before the next where their order counts.  Hooks and a `MessageTrace` hear nothing of it:
        they are about messages, which somebody else has encoded already.

        :param timeout_seconds: one deadline for everything, default ``send_timeout_seconds``
        :raises InvalidMessageError: it is too large; nothing was sent
        :raises RocketMQError: as `Producer.send`
        """
        self._check_running()
        check_size(encoded, self._config.max_message_bytes)
        deadline = monotonic() + (timeout_seconds or self._config.send_timeout_seconds)
        size = len(encoded.body)
        if not self._room.try_take(size):
            await self._wait_for_room(size, deadline, encoded.topic)
        try:
            publish = await self._published(encoded.topic, deadline)
            way = self._encoded_way(queue, sharding_key)
            sent = await self._made(encoded, way, publish, deadline)
            return await self._attempts.run(sent, publish, deadline)
        finally:
            self._room.give(size)

    async def queues_of_keys(
        self, topic: str, keys: Iterable[str], *, timeout_seconds: float | None = None
    ) -> list[MessageQueue]:
        """Return the queue that each of *keys* goes to.

        :raises RouteNotFoundError: there is no such topic, or a queue takes no messages now
        :raises NameServerUnavailableError: no name server answered in time
        """
        self._check_running()
        deadline = monotonic() + (timeout_seconds or self._config.send_timeout_seconds)
        publish = await self._published(check_topic(topic), deadline)
        return [self._by_key(checked_key(key), True).aim(publish).queue for key in keys]

    async def _published(self, topic: str, deadline: float) -> TopicPublishInfo:
        return self._topics.get(topic) or await self._publish(topic, deadline)

    def _encoded_way(self, queue: MessageQueue | None, key: str | None) -> Routing:
        if queue is not None:
            return Routing(lambda publish: publish.target(queue), fixed=True)
        return ANY_QUEUE if key is None else self._by_key(checked_key(key), True)

    async def _made(
        self, encoded: Encoded, way: Routing, publish: TopicPublishInfo, deadline: float
    ) -> SendRequest:
        target, fixed = way.aim(publish), way.fixed
        if encoded.timed:
            target, fixed = await self._timed_target(publish, target, fixed, deadline)
        now_ms = time_ns() // 1_000_000
        return SendRequest(
            target,
            encoded.topic,
            encoded.message_id,
            encoded.body,
            encoded.properties,
            0,
            encoded.flag,
            now_ms,
            encoded.batch,
            fixed,
        )


def check_size(encoded: Encoded, most: int) -> None:
    """Refuse what brokers would not take.

    :raises InvalidMessageError: it is too large, or a batch that goes to a retry topic
    """
    size = len(encoded.body)
    if size > most:
        what = "batch" if encoded.batch else "body"
        reason = f"the {what} has {size} bytes, max_message_bytes is {most}"
        raise InvalidMessageError(encoded.topic, reason)
    if encoded.batch and encoded.topic.startswith(RETRY_PREFIX):
        raise InvalidMessageError(encoded.topic, "a retry topic takes no batches")
